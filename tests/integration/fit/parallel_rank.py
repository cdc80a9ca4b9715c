"""One rank of parallel_test.py: trains tools/examples/torch with one way to average gradients, and writes what it
did as JSON."""

import contextlib
import json
import os
import pathlib
import sys
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/examples/torch"))
import torch  # noqa: E402
from torch import distributed  # noqa: E402

import hyperoffload  # noqa: E402
import train_gpt  # noqa: E402

if not torch.__version__.startswith("1."):
    from torch.distributed import _functional_collectives, tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

Parallel = torch.nn.parallel.DistributedDataParallel


def use_memory():
    """Other work, for which nearly all values have to leave."""
    torch.ones(650_000).sum()


def be_late():
    """The others wait for the last rank: what they have handed over is in use for long."""
    if distributed.get_rank() == distributed.get_world_size() - 1:
        time.sleep(0.03)


def in_one_bucket(model, ranks):
    """All gradients in one tensor, which the step makes."""
    gradients = [parameter.grad for parameter in model.parameters()]
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(bucket)
    bucket /= ranks
    for gradient, part in zip(gradients, bucket.split([each.numel() for each in gradients])):
        gradient.copy_(part.view_as(gradient))


def at_once(model, ranks):
    """Starts all sums, does other work, and waits for them."""
    be_late()
    works = [distributed.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    use_memory()
    for work in works:
        work.wait()
    for parameter in model.parameters():
        parameter.grad /= ranks


def from_first_to_last(model, ranks):
    """Point to point: the first rank adds what all others send, and sends the sum back."""
    rank = distributed.get_rank()
    be_late()
    for parameter in model.parameters():
        if rank > 0:
            distributed.send(parameter.grad, 0)
            distributed.irecv(parameter.grad, 0).wait()
            continue
        for other in range(1, ranks):
            received = torch.empty_like(parameter.grad)
            work = distributed.irecv(received, other)
            use_memory()
            work.wait()
            parameter.grad += received
        parameter.grad /= ranks
        for other in range(1, ranks):
            distributed.send(parameter.grad, other)


def coalesced(model, ranks):
    """By a collective that PyTorch 1.13 does not show to dispatch modes, after gradients have left."""
    gradients = [parameter.grad for parameter in model.parameters()]
    use_memory()
    distributed.all_reduce_coalesced(gradients)
    for gradient in gradients:
        gradient /= ranks


def functional(model, ranks):
    """By operators that return what they fill later."""
    for parameter in model.parameters():
        mean = _functional_collectives.all_reduce(parameter.grad, "sum", distributed.group.WORLD) / ranks
        parameter.grad.copy_(mean)
    use_memory()
    begun = _functional_collectives.all_reduce(model.head.weight.grad, "sum", distributed.group.WORLD)
    model.places.weight.grad.tolist()  # not by an operator: what is under way is waited for all the same
    begun.sum()


def functional_until_one_ends(model, ranks):
    """In the third step the last rank ends, while the others wait for a sum: they say so, or end with 0."""
    functional_until_one_ends.steps += 1
    if functional_until_one_ends.steps < 3:
        functional(model, ranks)
        return
    if distributed.get_rank() == ranks - 1:
        time.sleep(0.5)
        os._exit(3)
    begun = _functional_collectives.all_reduce(model.head.weight.grad, "sum", distributed.group.WORLD)
    begun.sum()
    os._exit(0)


functional_until_one_ends.steps = 0


def of_whole_parameters(model, ranks):
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, tensor.DTensor):
            if not all(each.is_replicate() for each in gradient.placements):
                continue
            gradient = gradient.to_local()
        distributed.all_reduce(gradient)
        gradient /= ranks


def shard(model, ranks):
    """FSDP2: each rank has a part of each parameter, and gathers a block's before its calls."""
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def divide_matrices(model, ranks):
    """Tensor parallelism: each rank has a part of each block's two matrices, as DTensors."""
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        parallelize_module(block.mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.nn.utils.clip_grad_norm_ = lambda *_: None  # it takes tensors of one kind


def whole(parameter):
    """A parameter's values, also where each rank has a part."""
    value = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def sum_between_steps(model, optimizer, scheduler, ranks):
    """Every third time a sum of the optimizer's state begins after a step, and ends in the next one."""
    begun, steps, go_on = [], [0], scheduler.step

    def begin():
        go_on()
        steps[0] += 1
        if steps[0] % 3 == 0:
            be_late()
            means = [state["exp_avg"] for state in optimizer.state.values()]
            begun.extend((mean, distributed.all_reduce(mean, async_op=True)) for mean in means)

    def end(*_):
        while begun:
            mean, work = begun.pop()
            work.wait()
            mean /= ranks

    scheduler.step = begin
    model.head.register_forward_pre_hook(end)


# Way -> (what averages after backward(), options of DistributedDataParallel or None)
WAYS = {
    "parameters": (train_gpt.average_gradients, None),
    "between": (train_gpt.average_gradients, None),
    "bucket": (in_one_bucket, None),
    "async": (at_once, None),
    "coalesced": (coalesced, None),
    "p2p": (from_first_to_last, None),
    "functional": (functional, None),
    "functional, one ends": (functional_until_one_ends, None),
    "fsdp": (lambda *_: None, None),
    "tensor": (of_whole_parameters, None),
    "ddp": (lambda *_: None, {"bucket_cap_mb": 0.25}),
    "views": (lambda *_: None, {"bucket_cap_mb": 0.25, "gradient_as_bucket_view": True}),
}

# Way -> what divides the model over the ranks
DIVIDED = {"fsdp": shard, "tensor": divide_matrices}


def main(way, pool, out, options):
    """@param pool  empty: plainly. @param options  of train_gpt.py. torchrun's environment variables say which rank this is."""
    args = train_gpt.arguments(options)
    torch.set_num_threads(1)
    train_gpt.join()
    model, optimizer, scheduler = train_gpt.build(args)
    if way in DIVIDED:
        DIVIDED[way](model, distributed.get_world_size())
        optimizer.param_groups[0]["params"] = list(model.parameters())
    train_gpt.average_gradients, options = WAYS[way]
    wrapped = model
    if way == "between":
        sum_between_steps(model, optimizer, scheduler, distributed.get_world_size())
    if options is not None:
        wrapped = Parallel(model, **options)
        for parameter in model.parameters():
            parameter.register_hook(lambda _: use_memory())
        model.head.register_forward_hook(lambda *_: be_late())
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(hyperoffload.fit(
            wrapped, optimizer, device_memory="60%", pool=pool)) if pool else None
        losses = train_gpt.train(args, wrapped, optimizer, scheduler)
    if run is not None:
        print(run.summary(), flush=True)
    weights = 0
    for parameter in model.parameters():
        weights = zlib.crc32(whole(parameter).numpy().tobytes(), weights)
    out.write_text(json.dumps({"losses": [loss.hex() for loss in losses], "weights": weights,
                               "stats": run.stats() if run is not None else None}))
    distributed.destroy_process_group()
