"""What a person sees who asks the package for help, or calls it with wrong arguments.

Usage: see support.py.
"""

import contextlib
import inspect
import io
import pathlib
import pickle
import pydoc
import re
import subprocess
import sys
import textwrap
import typing
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload

POOL = "unix:/run/hyperoffload/control.sock"


def public():
    """(name, function, method or property) of all that the package shows."""
    for name in dir(hyperoffload):
        value = getattr(hyperoffload, name)
        if not inspect.isclass(value):
            yield name, value
            continue
        for member, own in inspect.getmembers(value):
            ours = inspect.unwrap(own.fget if isinstance(own, property) else own)
            inside = getattr(ours, "__module__", "") or ""
            if inspect.isfunction(ours) and inside.startswith("hyperoffload") and (
                    not member.startswith("_") or member == "__init__"):
                yield f"{name}.{member}", own


class Help(support.WithDaemon):
    def test_dir_has_the_public_names_alone(self):
        self.assertEqual(dir(hyperoffload), sorted(hyperoffload.__all__))
        self.assertIn("fit", dir(hyperoffload))
        for name in dir(hyperoffload):
            self.assertTrue(inspect.getdoc(getattr(hyperoffload, name)), name)

    def test_public_names_are_pickled_and_classes_are_of_the_package(self):
        for name in hyperoffload.__all__:
            value = getattr(hyperoffload, name)
            self.assertIs(pickle.loads(pickle.dumps(value)), value)
            if inspect.isclass(value):
                self.assertEqual(value.__module__, "hyperoffload")
        self.assertEqual(pickle.loads(pickle.dumps(hyperoffload.Notice(1, 2, 3.0))), hyperoffload.Notice(1, 2, 3.0))

    def test_help_shows_each_function_with_its_units_and_errors(self):
        text = pydoc.plain(pydoc.render_doc(hyperoffload)).replace("(\n        ", "(")  # Python 3.13 breaks lines
        for words in ("fit(model: ", "record(step: ", "analyze(graph: ", "class Run", "class Plan",
                      "class Blocks", "class Graph", "class Recorder", "class Notice", "class Publisher", "Raises "):
            self.assertIn(words, text)

    def test_every_public_function_has_a_docstring_and_type_hints(self):
        shown = {name: getattr(hyperoffload, name) for name in dir(hyperoffload)}
        for name, value in public():
            with self.subTest(name):
                function = inspect.unwrap(value.fget if isinstance(value, property) else value)
                if not name.endswith("__init__"):
                    self.assertTrue(inspect.getdoc(value), "no docstring")
                hints = typing.get_type_hints(function, {**shown, **function.__globals__})
                names = [one for one in inspect.signature(function).parameters if one != "self"]
                self.assertEqual([one for one in [*names, "return"] if one not in hints], [])
        package = pathlib.Path(hyperoffload.__file__).parent
        self.assertTrue((package / "py.typed").exists())

    def test_the_example_of_the_docstring_runs(self):
        example = hyperoffload.__doc__.partition("A whole script:\n")[2].partition("\nIt prints")[0]
        script = self.folder / "example.py"
        script.write_text(textwrap.dedent(example).replace(POOL, self.pool))
        done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = hyperoffload.__doc__.partition("\nIt prints")[2]
        self.assertIn("18 of 20 steps ran under the plan", done.stdout)
        self.assertIn("18 of 20 steps ran under the plan", said)

    def test_without_pytorch_what_needs_none_is_there(self):
        script = ("import sys; sys.modules['torch'] = None\n"
                  "import hyperoffload, pydoc\n"
                  "assert 'fit' not in dir(hyperoffload) and 'Publisher' in dir(hyperoffload)\n"
                  "pydoc.render_doc(hyperoffload)\n"
                  "hyperoffload.Publisher, hyperoffload.Blocks\n"
                  "try: hyperoffload.fit\n"
                  "except ImportError as error: print(error)\n")
        done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "hyperoffload.fit needs PyTorch")

    def test_wrong_arguments_are_refused_at_once_and_name_what_to_write(self):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stranger = torch.optim.SGD(torch.nn.Linear(3, 3).parameters(), lr=0.1)
        given = {"model": model, "optimizer": optimizer, "device_memory": "60%", "pool": self.pool}
        for wrong, kind, words in (
                ({"model": lambda x: x}, TypeError, "model is a function; give the torch.nn.Module"),
                ({"model": optimizer, "optimizer": model}, TypeError, "model is a SGD; give the torch.nn.Module"),
                ({"optimizer": None}, TypeError, "optimizer is a NoneType; give the torch.optim.Optimizer"),
                ({"optimizer": [optimizer]}, TypeError, "optimizer is a list"),
                ({"optimizer": stranger}, ValueError, "optimizer has no parameter of the model"),
                ({"pool": None}, TypeError, 'pool is None; write .*"unix:/run/hyperoffload/control.sock"'),
                ({"pool": [self.pool]}, TypeError, "pool is "),
                ({"device_memory": 0.6}, ValueError, 'device_memory is 0.6; write "60%", "2GiB"'),
                ({"device_memory": True}, ValueError, "device_memory is True"),
                ({"device_memory": None}, ValueError, "device_memory is None"),
                ({"device_memory": "2GB"}, ValueError, "device_memory is '2GB'.*KiB, MiB, GiB"),
                ({"device_memory": "0%"}, ValueError, "device_memory is '0%'; .* more than 0"),
                ({"device_memory": -3}, ValueError, "more than 0"),
                ({"device_memory": "60"}, ValueError, """device_memory is '60', a number of bytes.*write "60%" for"""),
                ({"device_memory": 1 << 80}, ValueError, "device_memory is 1208925819614629174706176; no device"),
                ({"device_memory": "9999999TiB"}, ValueError, "no device has so much"),
                ({"device_memory": "nan%"}, ValueError, "device_memory is 'nan%'"),
                ({"device_memory": "inf%"}, ValueError, "device_memory is 'inf%'"),
                ({"device_memory": "infGiB"}, ValueError, "device_memory is 'infGiB'"),
                ({"replan": True}, ValueError, 'replan is True; write "once", "auto" or "never"'),
                ({"copies": 3}, ValueError, "copies is 3"),
                ({"wait": "3"}, ValueError, "wait is '3'; write seconds"),
                ({"log": True}, TypeError, "log is True; give a function that takes a line of text, as print"),
                ({"wait": True}, ValueError, "wait is True"),
                ({"hardware": "/nowhere.json"}, FileNotFoundError, "hardware is '/nowhere.json'")):
            with self.subTest(wrong), self.assertRaisesRegex(kind, words):
                hyperoffload.fit(**{**given, **wrong})
        self.assertEqual(hyperoffload.fit(**given).stats()["steps"], 0)

    def test_wrong_arguments_of_the_long_form(self):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaisesRegex(TypeError, "step is a NoneType; give a function"):
            hyperoffload.record(None)
        with self.assertRaisesRegex(TypeError, "steps is 'two'"):
            hyperoffload.record(lambda: None, model, optimizer, steps="two")
        with self.assertRaisesRegex(TypeError, "model is a str"):
            hyperoffload.record(lambda: None, "model", optimizer)
        with self.assertRaisesRegex(TypeError, "graph is a dict; give the Graph that record"):
            hyperoffload.analyze({}, device_memory="60%", pool=self.pool)
        with self.assertRaisesRegex(TypeError, "model is a NoneType"):
            hyperoffload.Recorder(None)
        with self.assertRaisesRegex(AttributeError, "'hyperoffload' has no attribute 'fitt'"):
            hyperoffload.fitt

    def test_a_pool_that_does_not_answer(self):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for pool in ("unix:/nowhere.sock", f"tcp:127.0.0.1:{support.free_port()}"):
            with self.assertRaisesRegex(hyperoffload.Error, f"{pool}: .*hyperoffloadd may not run there"), \
                    hyperoffload.fit(model, optimizer, device_memory="60%", pool=pool):
                pass

    def test_a_budget_that_cannot_be_met_says_which_one_can(self):
        """The budget that the first message names suffices."""
        def train(device_memory):
            torch.manual_seed(1)
            model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
            optimizer = torch.optim.AdamW(model.parameters())
            batch = torch.randn(128, 64)
            with hyperoffload.fit(model, optimizer, device_memory=device_memory, pool=self.pool):
                for _ in range(4):
                    model(batch).sum().backward()
                    optimizer.step()

        with self.assertRaisesRegex(MemoryError, "the budget of 3000 bytes is below the [0-9]+ of what cannot leave the "
                                                 "device: batches .* memory that numpy"):
            train(3_000)
        with self.assertRaises(MemoryError) as raised:
            train(60_000)
        said = str(raised.exception)
        self.assertNotIn("--", said)
        found = re.search(r"budget of 60000 bytes cannot be met: aten.* needs ([0-9]+) bytes at a time, beside the ([0-9]+) "
                          r"of what cannot leave .* device_memory of at least ([0-9]+) bytes", said)
        self.assertIsNotNone(found, said)
        self.assertEqual(int(found[1]) + int(found[2]), int(found[3]))
        self.assertGreater(int(found[3]), 60_000)
        train(int(found[3]))

    def test_a_run_is_entered_once_and_alone(self):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def fit():
            return hyperoffload.fit(model, optimizer, device_memory="60%", pool=self.pool)

        run = fit()
        with self.assertRaisesRegex(RuntimeError, "the run has not begun"):
            run.paused().__enter__()
        with run:
            with self.assertRaisesRegex(RuntimeError, "another run has not ended"), fit():
                pass
        with self.assertRaisesRegex(RuntimeError, "a run is entered once; call fit"), run:
            pass
        with self.assertRaisesRegex(RuntimeError, "the run has ended"):
            run.paused().__enter__()
        with fit():
            pass

    def test_a_run_without_a_step_says_why(self):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        said = io.StringIO()
        with contextlib.redirect_stderr(said), hyperoffload.fit(model, optimizer, device_memory="60%",
                                                                pool=self.pool) as run:
            model(torch.zeros(2, 64)).sum().backward()
        self.assertTrue(re.search("no step ended: optimizer.step.. of the optimizer that fit.. was given "
                                  "was not called", said.getvalue()), said.getvalue())
        self.assertIn("0 of 0 steps", run.summary())


if __name__ == "__main__":
    unittest.main()
