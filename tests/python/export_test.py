# SPDX-License-Identifier: MIT
"""The exporter on small modules and on tiny models of transformers. Usage: export_test.py SOURCE_ROOT [unittest's words]

Skipped (77) without torch 2.11 and safetensors; cases of transformers are skipped where that is absent.
"""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

ROOT = pathlib.Path(sys.argv.pop(1)).absolute()
sys.path.insert(0, str(ROOT / "python"))
try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {sys.executable} has no torch or safetensors ({error})")
    sys.exit(77)
if not torch.__version__.startswith("2.11."):
    print(f"skipped: {sys.executable} has torch {torch.__version__}, and programs are of 2.11")
    sys.exit(77)
try:
    import transformers

    transformers.logging.set_verbosity_error()
except ImportError:
    transformers = None

from tessera.export import ExportError, export_module, export_pretrained, initial_values, names, program_graph, ranges, tracing  # noqa: E402
from tessera.export.check import Check  # noqa: E402
from tessera.export.interpreter import Interpreter  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
TINY = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "max_position_embeddings": 32, "pad_token_id": 0}
ROWS = {"x": {0: "batch"}}


class Scaled(nn.Module):
    """A mean of squares, with a tie, a table and a constant of the graph."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return (self.second(torch.tanh(self.first(x)) + self.table) * torch.tensor([1.0, 2.0, 3.0, 4.0])).square().mean()


class Function(nn.Module):
    """A module of a function."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(4))

    def forward(self, x, y=None):
        return self.function(x * self.weight, y) if y is not None else self.function(x * self.weight)


def forward_of_x(function):
    """A module whose forward takes x only."""
    module = Function(function)
    module.forward = lambda x: function(x * module.weight)
    return module


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        torch.manual_seed(0)

    def tearDown(self):
        self.temporary.cleanup()

    def refused(self, text, module, example=None, dynamic=None):
        with self.assertRaisesRegex(ExportError, text) as caught:
            export_module(module, example or {"x": torch.randn(3, 4)}, dynamic or ROWS, self.folder / "out")
        self.assertEqual(len(str(caught.exception).splitlines()), 1)
        self.assertEqual(list(self.folder.iterdir()), [])

    def graph(self, out, row=0):
        manifest = json.loads((out / "program.json").read_text())
        return manifest, json.loads((out / manifest["programs"][row]["file"]).read_text())


class Modules(Case):
    def test_the_files_alone_give_the_modules_loss_and_gradient(self):
        module, out = Scaled(), self.folder / "out"
        manifest = export_module(module, {"x": torch.randn(3, 4)}, ROWS, out)
        self.assertEqual(manifest["loss"], "mean")
        self.assertEqual(manifest["inputs"], [{"name": "x", "dtype": "float32", "dims": ["batch", 4]}])
        self.assertEqual(manifest["ranges"], {"batch": [1, None]})
        self.assertEqual([(row["name"], row["same_as"], row["stored"]) for row in manifest["parameters"]],
                         [("first.weight", None, "first.weight"), ("second.weight", "first.weight", "first.weight")])
        self.assertEqual(manifest["buffers"], [{"name": "table", "shape": [4], "dtype": "float32", "persistent": False, "stored": None, "changes": False}])
        self.assertEqual({row["file"] for row in manifest["programs"]}, {"program.float32.train.json"}, "equal programs are one file")
        weights, constants = load_file(out / "model.safetensors"), load_file(out / "program.constants.safetensors")
        self.assertEqual(list(weights), ["first.weight"])
        constants |= {name.removeprefix("float32.train/"): value for name, value in constants.items()}
        weight, x = weights["first.weight"].requires_grad_(), torch.randn(7, 4)
        loss, = Interpreter(self.graph(out)[1])({**constants, "first.weight": weight, "second.weight": weight}, {"x": x})
        loss.backward()
        module(x).backward()
        self.assertEqual(loss.item(), module(x).item())
        self.assertTrue(torch.equal(weight.grad, module.first.weight.grad))

    def test_modes_with_other_work_are_two_programs(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        module.forward = lambda x: nn.Sequential.forward(module, x).square().mean()
        manifest = export_module(module, {"x": torch.randn(3, 4)}, ROWS, self.folder / "out")
        self.assertEqual([row["file"] for row in manifest["programs"]], ["program.float32.train.json", "program.float32.eval.json"])
        self.assertEqual([row["name"] for row in manifest["buffers"] if row["changes"]], ["1.running_mean", "1.running_var", "1.num_batches_tracked"])
        self.assertEqual(manifest["ranges"], {"batch": [2, None]}, "one row is refused: BatchNorm has no variance of it")
        self.assertTrue(module.training and module[1].num_batches_tracked == 0, "the module is as it was")

    def test_dropout_of_rate_zero_is_no_other_work(self):
        module = forward_of_x(lambda x: nn.functional.dropout(x, 0.0, True).mean())
        manifest = export_module(module, {"x": torch.randn(3, 4)}, ROWS, self.folder / "out")
        self.assertEqual(len({row["file"] for row in manifest["programs"]}), 1)

    def test_each_dtype_is_a_program(self):
        manifest = export_module(Scaled(), {"x": torch.randn(3, 4)}, ROWS, self.folder / "out", dtypes=("bf16", "fp32"))
        self.assertEqual({row["dtype"] for row in manifest["programs"]}, {"bfloat16", "float32"})
        constants = load_file(self.folder / "out/program.constants.safetensors")
        self.assertEqual({str(constants[name].dtype) for name in ("table", "float32.train/table")}, {"torch.bfloat16", "torch.float32"})

    def test_one_tensor_under_two_names_is_two_inputs(self):
        x = torch.randn(3, 4)
        export_module(Function(lambda x, y: (x * y.sin()).sum()), {"x": x, "y": x}, {"x": {0: "batch"}, "y": {0: "batch"}}, self.folder / "out")
        specs = self.graph(self.folder / "out")[1]["graph_module"]["signature"]["input_specs"]
        self.assertEqual([spec["user_input"]["arg"]["as_tensor"]["name"] for spec in specs if "user_input" in spec], ["x", "y"])

    def test_layers_are_cut_where_they_run_once_and_in_order(self):
        def layered(order):
            module = nn.Module()
            module.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

            def forward(x):
                for number in order:
                    x = module.blocks[number](x)
                return x.square().mean()

            module.forward = forward
            return module

        for name, order, expected in (("a", (0, 1, 2), ["blocks"]), ("b", (0, 2, 1), []), ("c", (0, 1, 2, 0), [])):
            manifest = export_module(layered(order), {"x": torch.randn(3, 4)}, ROWS, self.folder / name)
            self.assertEqual(manifest["layers"], expected)

    def test_nothing_of_the_host_is_in_the_files(self):
        out = self.folder / "out"
        export_module(Scaled(), {"x": torch.randn(3, 4)}, ROWS, out)
        text = "".join(path.read_text() for path in out.glob("*.json"))
        for word in ("stack_trace", "_assert_tensor_metadata", "site-packages", str(ROOT), "/home", "/tmp"):
            self.assertNotIn(word, text)
        self.assertIn("nn_module_stack", text)

    def test_the_same_module_gives_the_same_bytes(self):
        for name in ("a", "b"):
            torch.manual_seed(0)
            export_module(Scaled(), {"x": torch.randn(3, 4)}, ROWS, self.folder / name, name="same")
        for path in (self.folder / "a").iterdir():
            self.assertEqual(path.read_bytes(), (self.folder / "b" / path.name).read_bytes(), path.name)


class Refusals(Case):
    def test_a_dimension_that_becomes_a_constant(self):
        self.refused("the dimension batch of x becomes a constant", forward_of_x(lambda x: x.reshape(3, 2, 2).mean()))

    def test_dimensions_that_are_tied(self):
        module = Function(lambda x, y: (x + y).square().mean())
        self.refused("the dimensions rows and others are one", module, {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}, {"x": {0: "rows"}, "y": {0: "others"}})

    def test_sizes_that_something_must_divide(self):
        self.refused("PyTorch cannot export it.*4\\*s", forward_of_x(lambda x: x.reshape(-1, 2, 2, 4).mean()), {"x": torch.randn(6, 4)})

    def test_guards_become_ranges_or_are_refused(self):
        def narrowed(holds):
            return ranges._narrowed([1, None], "rows", 24, "GUARD", holds)

        self.assertEqual(narrowed(lambda n: n >= 3), [3, None])
        self.assertEqual(narrowed(lambda n: n <= 1500), [1, 1500])
        self.assertEqual(narrowed(lambda n: 4 < n < 2000), [5, 1999])
        for holds in (lambda n: n % 8 == 0, lambda n: n != 12, lambda n: n < 20 or n > 22):
            with self.assertRaisesRegex(ExportError, "rows is not free in this module: it holds only where GUARD"):
                narrowed(holds)

    def test_weights_that_the_forward_changes(self):
        module = nn.Module()
        module.inner = nn.Linear(4, 4)

        def forward(x):
            module.inner.weight.data.clamp_(-1, 1)
            return module.inner(x).square().mean()

        module.forward = forward
        self.refused("PyTorch cannot export it: the forward makes or changes a tensor that the tracer does not see", module)

    def test_values_that_decide(self):
        self.refused("PyTorch cannot export it", forward_of_x(lambda x: x.mean() if x.sum() > 0 else x.sum()))

    def test_the_module_that_fails_is_named(self):
        class Inner(nn.Module):
            def forward(self, x):
                return x.mean() if x.sum() > 0 else x.sum()

        module = nn.ModuleDict({"inner": Inner()})
        module.forward = lambda x: module["inner"](x)
        self.refused("^inner: PyTorch cannot export it", module)

    def test_outputs_that_are_no_loss(self):
        self.refused("returns 3 tensors", forward_of_x(lambda x: (x.sum(), x.sum(), x.sum())))

    def test_examples_that_cannot_be_free(self):
        self.refused("give 2 at least", Scaled(), {"x": torch.randn(1, 4)})
        self.refused("none of the example's inputs", Scaled(), {"x": torch.randn(3, 4)}, {"z": {0: "batch"}})

    def test_upper_ends_are_found(self):
        class Positions(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Parameter(torch.randn(10, 4))

            def forward(self, x):
                return (x + self.table[:x.shape[0]]).square().mean()

        manifest = export_module(Positions(), {"x": torch.randn(3, 4)}, ROWS, self.folder / "out")
        self.assertEqual(manifest["ranges"], {"batch": [1, 10]})


class Checks(Case):
    """The check must find a program that does other work."""

    def spoiled(self, change, text):
        module, out = Scaled(), self.folder / "out"
        x = {"x": torch.randn(3, 4)}
        export_module(module, x, ROWS, out)
        graph = self.graph(out)[1]
        constants = load_file(out / "program.constants.safetensors")
        constants |= {name.removeprefix("float32.train/"): value for name, value in constants.items()}
        dims = {"x": ["batch", 4]}
        Check(module, graph, constants, x, dims, "module", "float32", {}).run({"batch": [1, None]})
        change(graph["graph_module"]["graph"]["nodes"], constants)
        with self.assertRaisesRegex(ExportError, text):
            Check(module, graph, constants, x, dims, "module", "float32", {}).run({"batch": [1, None]})

    @staticmethod
    def node(nodes, target):
        return next(node for node in nodes if node["target"] == target)

    def test_another_operator(self):
        self.spoiled(lambda nodes, _: self.node(nodes, "torch.ops.aten.tanh.default").update(target="torch.ops.aten.sin.default"), "differs by")

    def test_a_lost_tie(self):
        self.spoiled(lambda nodes, _: self.node(nodes[::-1], "torch.ops.aten.linear.default")["inputs"][1].update(
            arg={"as_tensor": {"name": "c_lifted_tensor_0"}}), "")

    def test_a_dropped_gradient(self):
        self.spoiled(lambda nodes, _: self.node(nodes, "torch.ops.aten.tanh.default").update(target="torch.ops.aten.detach.default"), "differs by")

    def test_another_constant(self):
        self.spoiled(lambda _, constants: constants["table"].add_(1), "differs by")

    def test_an_operator_that_is_not_there(self):
        self.spoiled(lambda nodes, _: self.node(nodes, "torch.ops.aten.tanh.default").update(target="torch.ops.aten.gone.default"), "gone")


    def test_shapes_of_modules_too_large_to_draw(self):
        module, x, dims = forward_of_x(lambda x: x.square().sum(1, keepdim=True)), {"x": torch.randn(3, 4)}, {"x": ["batch", 4]}
        graph = program_graph.to_json(tracing.trace(module, x, dims))
        check = lambda: Check(module, graph, {}, x, dims, "module", "float32", {}, by_values=False).run({"batch": [2, 9]})
        self.assertEqual(check(), ({"batch": [1, 9]}, []))
        keep = next(argument for argument in self.node(graph["graph_module"]["graph"]["nodes"], "torch.ops.aten.sum.dim_IntList")["inputs"]
                    if argument["name"] == "keepdim")
        keep["arg"] = {"as_bool": False}
        with self.assertRaisesRegex(ExportError, r"shapes \[\[2\]\], not \[\[2, 1\]\]"):
            check()


class InitialValues(Case):
    def test_rules_are_those_of_the_operators(self):
        with initial_values.parameters_on_meta() as watch:
            linear, norm, embedding = nn.Linear(16, 4), nn.LayerNorm(4), nn.Embedding(9, 4, padding_idx=3)
            cut, table, drawn = nn.Module(), nn.Module(), nn.Module()
            cut.weight = nn.Parameter(torch.empty(30, 30))
            nn.init.trunc_normal_(cut.weight, 0.5, 0.1, 0.3, 0.7)
            table.weight = nn.Parameter(torch.log(torch.arange(1.0, 9.0)))
            drawn.weight = nn.Parameter(torch.randn(3, 3))
        rule = watch.rule
        self.assertTrue(all(p.device.type == "meta" for p in (*linear.parameters(), cut.weight, table.weight)))
        self.assertEqual((rule(linear.weight)["kind"], round(rule(linear.weight)["high"], 6)), ("uniform", 0.25))
        self.assertEqual([rule(p) for p in norm.parameters()], [{"kind": "constant", "value": 1.0}, {"kind": "constant", "value": 0.0}])
        self.assertEqual(rule(embedding.weight), {"kind": "normal", "mean": 0.0, "std": 1.0, "zero_rows": [3]})
        found = rule(cut.weight)
        self.assertEqual(found["kind"], "truncated_normal")
        for key, value in (("mean", 0.5), ("std", 0.1), ("low", 0.3), ("high", 0.7)):
            self.assertAlmostEqual(found[key], value, places=6)
        self.assertEqual(rule(table.weight)["kind"], "tensor")
        self.assertTrue(torch.equal(rule(table.weight)["values"], torch.log(torch.arange(1.0, 9.0))))
        self.assertEqual(rule(drawn.weight), {"kind": "normal", "mean": 0.0, "std": 1.0})

    def test_a_fill_of_a_part_is_no_rule_of_the_whole(self):
        with initial_values.parameters_on_meta() as watch:
            module = nn.Linear(4, 4)
            with torch.no_grad():
                module.weight[1:3].fill_(2.0)
        self.assertIsNone(watch.rule(module.weight))

    def test_a_module_keeps_its_values(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        before = copy.deepcopy(module.state_dict())
        rules = initial_values.reset_rules(module)
        self.assertEqual({name: rules[name]["kind"] for name in ("0.weight", "1.weight")}, {"0.weight": "uniform", "1.weight": "constant"})
        self.assertTrue(all(torch.equal(before[name], value) for name, value in module.state_dict().items()))


@unittest.skipIf(transformers is None, "there is no transformers")
class Models(Case):
    def source(self, save=True, **settings):
        """A directory of a tiny model as transformers saves it, and the model."""
        config = transformers.AutoConfig.for_model(**{**TINY, "model_type": "llama", **settings})
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        folder = self.folder / "source"
        (model if save else config).save_pretrained(folder)
        return folder, model

    def test_a_directory_becomes_a_program_with_its_weights(self):
        folder, _ = self.source(tie_word_embeddings=True)
        (folder / "tokenizer.json").write_text("{}")
        out = self.folder / "out"
        manifest = export_pretrained(folder, out, dtypes=("fp32",), modes=("train",))
        self.assertEqual((manifest["task"], manifest["loss"], manifest["layers"]), ("causal", "causal", ["model.layers"]))
        self.assertEqual(manifest["ranges"], {"batch": [1, None], "sequence": [1, None]})
        head = manifest["parameters"][-1]
        self.assertEqual((head["name"], head["same_as"], head["stored"]), ("lm_head.weight", "model.embed_tokens.weight", "model.embed_tokens.weight"))
        self.assertEqual(manifest["parameters"][0]["init"], {"kind": "normal", "mean": 0.0, "std": 0.02, "zero_rows": [0]})
        self.assertEqual((out / "model.safetensors").stat().st_ino, (folder / "model.safetensors").stat().st_ino)
        self.assertEqual({path.name for path in out.iterdir()}, {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                                                "program.json", "program.float32.train.json", "program.constants.safetensors"})
        self.assertGreater(load_file(out / "program.constants.safetensors")["model.rotary_emb.inv_freq"].abs().sum(), 0)

    def test_stored_forms_give_every_parameter_its_value(self):
        for settings in ({"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, {"model_type": "gpt_neox"}):
            folder, model = self.source(**settings)
            tensors = load_file(folder / "model.safetensors")
            forms = names.stored_forms(model, {name: tuple(value.shape) for name, value in tensors.items()})
            self.assertTrue(any(form != name for name, form in forms.items()), "the file has other names")
            for name, value in model.named_parameters():
                self.assertTrue(torch.equal(names.form_value(forms[name], tensors), value), name)
                self.assertEqual(names.form_shape(forms[name], {key: tuple(t.shape) for key, t in tensors.items()}), tuple(value.shape))
            self.assertEqual(set().union(*map(names.names_in, forms.values())), set(tensors), "all of the file is used")

    def test_a_file_without_the_prefix_or_without_a_head_is_understood(self):
        folder, _ = self.source()
        tensors = load_file(folder / "model.safetensors")
        save_file({name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}, folder / "model.safetensors")
        said = []
        manifest = export_pretrained(folder, self.folder / "out", dtypes=("fp32",), modes=("train",), check=False, say=said.append)
        stored = {row["name"]: row["stored"] for row in manifest["parameters"]}
        self.assertEqual((stored["model.norm.weight"], stored["lm_head.weight"]), ("norm.weight", None))
        self.assertTrue(any("1 parameters are not in the weights and will be drawn, such as lm_head.weight" in line for line in said), said)

    def test_another_shape_is_refused(self):
        folder, _ = self.source()
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, "model.norm.weight": torch.ones(7)}, folder / "model.safetensors")
        with self.assertRaisesRegex(ExportError, r"model.norm.weight is \[16\] in the model and \[7\] in the file"):
            export_pretrained(folder, self.folder / "out", dtypes=("fp32",), modes=("train",), check=False)

    def test_a_balance_loss_is_an_output_with_its_weight(self):
        folder, _ = self.source(save=False, model_type="olmoe", num_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.25)
        manifest = export_pretrained(None, self.folder / "out", config=folder / "config.json", dtypes=("fp32",), modes=("train",))
        self.assertEqual(manifest["outputs"], [{"name": "logits"}, {"name": "auxiliary_loss", "weight": 0.25}])
        targets = {node["target"] for node in self.graph(self.folder / "out")[1]["graph_module"]["graph"]["nodes"]}
        self.assertFalse([target for target in targets if target.startswith("torch.ops.transformers")], "operators that LibTorch does not have")

    def test_classification_and_more_inputs(self):
        folder, _ = self.source(save=False)
        manifest = export_pretrained(None, self.folder / "out", config=folder / "config.json", dtypes=("bf16",), modes=("eval",), task="classification",
                                     more_inputs=("attention_mask",))
        self.assertEqual([row["name"] for row in manifest["inputs"]], ["input_ids", "attention_mask"])
        self.assertEqual((manifest["loss"], manifest["programs"][0]["dtype"]), ("classification", "bfloat16"))

    def test_weights_take_no_memory(self):
        """Four billion parameters, 8 GiB in bf16, in a process that may have 3 GiB."""
        config = {**TINY, "model_type": "llama", "vocab_size": 250000, "hidden_size": 8192, "num_hidden_layers": 1, "head_dim": 4096}
        (self.folder / "config.json").write_text(json.dumps(config))
        script = ("import resource, sys; from tessera.export import export_pretrained\n"
                  "export_pretrained(None, sys.argv[1] + '/out', config=sys.argv[1] + '/config.json', dtypes=('bf16',), modes=('train',))\n"
                  "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)")
        said = subprocess.run([sys.executable, "-c", script, str(self.folder)], env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertLess(int(said.split()[-1]), 3072)

    def test_what_cannot_be_exported_is_said(self):
        for text, settings in (("quantised weights", {"quantization_config": {"quant_method": "mxfp4"}}),
                               ("mamba|sequence", {"model_type": "mamba", "state_size": 4})):
            folder, _ = self.folder / "wrong", None
            folder.mkdir(exist_ok=True)
            config = {**TINY, "model_type": "llama", **settings}
            (folder / "config.json").write_text(json.dumps(config))
            with self.assertRaisesRegex(ExportError, text) as caught:
                export_pretrained(None, self.folder / "out", config=folder / "config.json", dtypes=("fp32",), modes=("train",))
            self.assertEqual(len(str(caught.exception).splitlines()), 1)

    def test_the_committed_program_is_what_the_exporter_writes(self):
        fixture = ROOT / "tests/data/programs/llama"
        manifest = json.loads((fixture / "program.json").read_text())
        if manifest["transformers"] != transformers.__version__:
            self.skipTest(f"the fixture is of transformers {manifest['transformers']}")
        export_pretrained(fixture, self.folder / "llama", dtypes=("fp32",), weights="none", check=False)
        for name in (manifest["programs"][0]["file"], "program.constants.safetensors", "program.json"):
            self.assertEqual((self.folder / "llama" / name).read_bytes(), (fixture / name).read_bytes(), name)


if __name__ == "__main__":
    unittest.main()
