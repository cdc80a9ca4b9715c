"""Gradients by the formulas that PyTorch takes without a dispatch mode: under any mode it takes others for a few
operators, whose last bits differ."""

import operator

import torch

_ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "self": "input"}  # as PyTorch takes them, for numpy's sake
_PROD, _CUMPROD = torch.prod, torch.cumprod
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _named(names, args, kwargs):
    """Name -> value, of the arguments of a call."""
    return {**dict(zip(names, args)), **{_ALIASES.get(name, name): value for name, value in kwargs.items()}}


def _is_ours(value):
    """Whether it is a tensor whose gradient the formulas below may give: not within a transform of functorch, where PyTorch
    refuses functions as theirs also for other tensors, or with forward gradients."""
    transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
    return (type(value) in _PLAIN and value.requires_grad and torch.is_grad_enabled() and not transforms()
            and torch.autograd.forward_ad._current_level < 0)


def _index(dim):
    """A dimension as PyTorch takes it, as numpy's numbers and tensors; None: it is not a number."""
    try:
        return operator.index(dim)
    except TypeError:
        return None


class _Prod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, original, arguments):
        result = original(value, **arguments)
        ctx.save_for_backward(value, result)
        ctx.arguments = arguments
        return result

    @staticmethod
    def backward(ctx, grad):
        value, result = ctx.saved_tensors
        plain, dim = value.to(grad.dtype), ctx.arguments.get("dim")
        if value.dim() == 0:
            return grad.clone(), None, None
        if dim is None:
            count = (plain == 0).nonzero().shape[0]
            if count > 1:
                return torch.zeros_like(value), None, None
        else:
            count = (plain == 0).sum(dim, True).sum().item()
        if dim is not None and not ctx.arguments.get("keepdim") and value.dim() != 1:
            grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
        if count > 0 and dim is None:
            return _prod_with_zeros(grad, plain.contiguous().view(-1), 0).view_as(value), None, None
        if count > 0:
            return _prod_with_zeros(grad, plain, dim), None, None
        return grad * (result / plain).conj(), None, None


def _prod_with_zeros(grad, value, dim):
    """The gradient of prod() along a dimension: the product of all before an element, and of all after it."""
    if value.shape[dim] == 1:
        return grad.expand_as(value)
    shape = list(value.shape)
    shape[dim] = 1
    ones, rest = torch.ones(shape, dtype=grad.dtype, device=grad.device), value.shape[dim] - 1
    before = _cumprod_of(torch.cat([ones, value.narrow(dim, 0, rest)], dim), dim)
    after = _cumprod_of(torch.cat([ones, value.narrow(dim, 1, rest).flip(dim)], dim), dim).flip(dim)
    return grad * (before * after).conj()


def _prod_of(value, dim):
    return _prod(_PROD, value, dim, True)


def _cumprod_of(value, dim):
    return _cumprod(_CUMPROD, value, dim)


def _reversed_cumsum(value, dim):
    return value.flip(dim).cumsum(dim).flip(dim)


class _Cumprod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, original, arguments):
        result = original(value, **arguments)
        ctx.save_for_backward(value, result)
        ctx.arguments = arguments
        return result

    @staticmethod
    def backward(ctx, grad):
        value, result = ctx.saved_tensors
        dim, grad = ctx.arguments["dim"], grad.to(value.dtype)
        if value.numel() <= 1 or value.shape[dim] == 1:
            return grad, None, None
        weighted, is_zero = result.conj() * grad, value == 0
        if not is_zero.any().item():
            return _reversed_cumsum(weighted, dim).div(value.conj()), None, None
        if torch.is_grad_enabled():
            return _differentiable(grad, value.conj(), dim), None, None
        return _with_zeros(grad, value.conj(), result.conj(), weighted, is_zero, dim), None, None


def _with_zeros(grad, value, result, weighted, is_zero, dim):
    """The gradient of cumprod() along a dimension with zeros: what is before the first, and the first itself, have
    one; all that follows multiplies by it."""
    found, count = torch.zeros_like(grad), is_zero.cumsum(dim)
    before, between = count == 0, count == 1
    found.masked_scatter_(before, _reversed_cumsum(weighted.masked_fill(~before, 0.0), dim).div_(value).masked_select(before))
    first = between.max(dim, keepdim=True).indices
    is_first = torch.zeros_like(between).scatter_(dim, first, 1).logical_and_(between)
    between &= ~is_first
    ahead = torch.gather(result, dim, (first - 1).relu_()).masked_fill_(first == 0, 1.0)
    rest = value.masked_fill(~between, 1.0).cumprod(dim).mul_(grad.masked_fill(count != 1, 0.0)).sum(dim, keepdim=True)
    found.masked_scatter_(is_first, rest.mul_(ahead).masked_select(is_first))
    return found


def _differentiable(grad, value, dim):
    """The same, by a formula with the right derivative."""
    count, found = value.shape[dim], torch.zeros(value.shape, dtype=grad.dtype, device=grad.device)
    for place in range(count):
        before = _prod_of(value.narrow(dim, 0, place), dim) if place else torch.ones_like(value.narrow(dim, 0, 1))
        omitted = before
        if place < count - 1:
            after = _cumprod_of(value.narrow(dim, place + 1, count - place - 1), dim)
            omitted = torch.cat([before, before.expand_as(after) * after if place else after], dim)
        found.select(dim, place).copy_((grad.narrow(dim, place, count - place) * omitted).sum(dim))
    return found


class _MaskedFill(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, mask, filling, original):
        ctx.save_for_backward(mask)
        return original(value, mask, filling)

    @staticmethod
    def backward(ctx, grad):
        mask, = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (grad.masked_fill(mask, 0) if needs[0] else None, None,
                grad.masked_select(mask).sum() if needs[2] else None, None)


def _prod(original, *args, **kwargs):
    arguments = _named(("input", "dim", "keepdim"), args, kwargs)
    value = arguments.pop("input", None)
    if not _is_ours(value) or arguments.get("out") is not None:
        return original(*args, **kwargs)
    if arguments.get("dim") is not None:
        arguments["dim"] = _index(arguments["dim"])
        if arguments["dim"] is None:
            return original(*args, **kwargs)
    return _Prod.apply(value, original, {name: each for name, each in arguments.items() if each is not None})


def _cumprod(original, *args, **kwargs):
    arguments = _named(("input", "dim"), args, kwargs)
    value = arguments.pop("input", None)
    if not _is_ours(value) or arguments.get("out") is not None:
        return original(*args, **kwargs)
    arguments["dim"] = _index(arguments.get("dim"))
    if arguments["dim"] is None:
        return original(*args, **kwargs)
    return _Cumprod.apply(value, original, {name: each for name, each in arguments.items() if each is not None})


def _masked_fill(original, *args, **kwargs):
    arguments = _named(("input", "mask", "value"), args, kwargs)
    filling = arguments.get("value")
    if not _is_ours(filling) or type(arguments.get("input")) not in _PLAIN or len(arguments) != 3:
        return original(*args, **kwargs)
    return _MaskedFill.apply(arguments["input"], arguments["mask"], filling, original)


# Name in torch and torch.Tensor -> what runs in place of the function: around(original, *args, **kwargs).
AROUND = {"prod": _prod, "cumprod": _cumprod, "masked_fill": _masked_fill}
