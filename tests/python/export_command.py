# SPDX-License-Identifier: MIT
"""python -m tessera.export without the module being built and without torch: what it says and how it ends. Usage: export_command.py SOURCE_ROOT"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).absolute()
sys.path.insert(0, str(ROOT / "python"))
from tessera.export import directory  # noqa: E402
from tessera.export.errors import ExportError, first_sentence  # noqa: E402
from tessera.export.manifest_text import manifest_text  # noqa: E402


def python(*words):
    """Exit code and all that was said, in a Python that finds no torch."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('No module named torch')\n")
        result = subprocess.run([sys.executable, "-B", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT / 'python'}"})
        return result.returncode, result.stdout


class Command(unittest.TestCase):
    def refused(self, text, *words):
        code, said = python("-m", "tessera.export", *words)
        self.assertEqual(code, 2, said)
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertTrue(said.startswith("E export: ") and text in said, said)

    def test_refuses_wrong_words_with_one_sentence(self):
        self.refused("give DIR_OR_NAME and OUT", "only_one")
        self.refused("give DIR_OR_NAME and OUT", "--model_config", "config.json", "a", "b")
        self.refused("--dtype int8: int8 is none of", "a", "b", "--dtype", "int8")
        self.refused("--inputs labels: labels is none of", "a", "b", "--inputs", "labels")
        self.refused("one program at least", "a", "b", "--dtype", "")

    def test_says_what_to_install(self):
        self.refused("pip install torch==2.11.0", "a", "b")

    def test_help_needs_nothing(self):
        code, said = python("-m", "tessera.export", "--help")
        self.assertEqual(code, 0, said)
        self.assertIn("--no_check", said)

    def test_a_clone_has_the_exporter_and_says_that_the_rest_is_not_built(self):
        code, said = python("-c", "import tessera, sys; assert not [m for m in sys.modules if m.startswith('torch')]; import tessera.export\n"
                                  "try: tessera.Job\nexcept ImportError as error: print(error)\nelse: print('built')")
        self.assertEqual(code, 0, said)
        self.assertIn("not built", said)


class Directory(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def raises(self, text, call):
        with self.assertRaisesRegex(ExportError, text):
            call()

    def test_nothing_is_left_of_a_failed_export(self):
        with self.assertRaises(RuntimeError), directory.new_directory(self.folder / "out") as made:
            (made / "program.json").write_text("{}")
            raise RuntimeError("in the middle")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_what_is_there_is_not_replaced(self):
        (self.folder / "out").mkdir()
        (self.folder / "out/notes.txt").write_text("mine")
        self.raises("is there already", lambda: directory.new_directory(self.folder / "out").__enter__())
        self.raises("holds no export", lambda: directory.new_directory(self.folder / "out", force=True).__enter__())
        (self.folder / "out/program.json").write_text("{}")
        with directory.new_directory(self.folder / "out", force=True) as made:
            (made / "new").write_text("")
        self.assertEqual([path.name for path in (self.folder / "out").iterdir()], ["new"])

    def test_weights_are_linked_copied_or_left_out(self):
        (self.folder / "model.safetensors").write_bytes(b"weights")
        for how, said in (("link", "linked"), ("copy", "copied"), ("none", "left out")):
            made = self.folder / how
            made.mkdir()
            self.assertEqual(directory.bring_weights(self.folder, directory.weight_files(self.folder), made, how), said)
        inode = (self.folder / "model.safetensors").stat().st_ino
        self.assertEqual((self.folder / "link/model.safetensors").stat().st_ino, inode)
        self.assertNotEqual((self.folder / "copy/model.safetensors").stat().st_ino, inode)
        self.assertEqual(list((self.folder / "none").iterdir()), [])

    def test_broken_weights_are_refused_by_name(self):
        (self.folder / "pytorch_model.bin").write_bytes(b"")
        self.raises("pytorch_model.bin; save them as safetensors", lambda: directory.weight_files(self.folder))
        index = self.folder / "model.safetensors.index.json"
        index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
        self.raises("names ../elsewhere.safetensors", lambda: directory.weight_files(self.folder))
        index.write_text("[]")
        self.raises("is no index", lambda: directory.weight_files(self.folder))
        (self.folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little"))
        self.raises("no safetensors file", lambda: directory.stored_shapes(self.folder, ["model.safetensors"]))


class Texts(unittest.TestCase):
    def test_reasons_are_one_sentence_without_folders(self):
        self.assertEqual(first_sentence(ValueError("\n====\nIt fails in /home/user/site/model.py\nmore")), "It fails in model.py")
        self.assertEqual(first_sentence(ValueError("Constraints violated (x)!\n  - The size is a constant.\n")), "The size is a constant.")
        self.assertEqual(first_sentence(ValueError()), "ValueError")
        self.assertEqual(len(first_sentence(ValueError("a" * 900))), 300)

    def test_a_manifest_has_a_line_for_each_row(self):
        text = manifest_text({"format": "tessera.program", "parameters": [{"name": "a"}, {"name": "b"}], "layers": []})
        self.assertEqual(text, '{\n "format": "tessera.program",\n "parameters": [\n  {"name": "a"},\n  {"name": "b"}\n ],\n "layers": []\n}\n')


if __name__ == "__main__":
    unittest.main()
