# SPDX-License-Identifier: MIT
"""One process: what a Strategy does and refuses. Usage: alone.py FOLDER_OF_THE_TWO_RANKS ROWS"""
import gc
import json
import os
import pathlib
import sys
import tempfile
import threading
import weakref

import numpy
import tessera

out, rows_file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_alone_"))
rows = numpy.array([json.loads(line)["input_ids"] for line in rows_file.read_text().splitlines()])
BATCH = {"input_ids": rows[:4], "labels": rows[:4]}


def refused(text, call, code="invalid argument"):
    try:
        call()
    except tessera.Error as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
        assert error.code == code and error.exit_code in (2, 4), (error.code, error.exit_code)
        return
    raise AssertionError(f"not refused: {text}")


class OnGpu:
    """An array of a device that this rank does not work on."""

    def __dlpack__(self, **_):
        raise AssertionError("its memory is asked for")

    def __dlpack_device__(self):
        return 2, 0


# One LibTorch.
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu.so" in line}
assert len(mapped) == 1, mapped

with tessera.Job() as job:
    assert (job.rank, job.world_size, job.device, job.exchange("a")) == (0, 1, "cpu", ["a"])
    model = tessera.Model.from_config("bloom-mini")
    make = lambda **settings: tessera.Strategy(job, model, **settings)

    # The checkpoint and the export of two ranks under zero2.
    strategy = make(strategy="single")
    first = strategy.evaluate(BATCH).loss
    steps = strategy.load(out)
    assert steps == strategy.steps == strategy.updates == 6
    trained = strategy.evaluate(BATCH).loss
    assert trained < first - 0.1, (first, trained)
    exported = tessera.Strategy(job, tessera.Model.from_pretrained(out / "final"))
    assert abs(exported.evaluate(BATCH).loss - trained) < 1e-6

    # Named arrays, with and without the base model's prefix, read-only ones and those of other strides, too.
    arrays = {name: numpy.from_dlpack(array) for name, array in strategy.parameters().items()}
    assert sorted(arrays) == sorted(name for name, _ in model.parameter_shapes())
    assert all(list(arrays[name].shape) == shape for name, shape in model.parameter_shapes())
    given = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    matrix = next(name for name, array in given.items() if array.ndim == 2)
    given[matrix] = numpy.asfortranarray(given[matrix])
    for array in given.values():
        array.setflags(write=False)
    again = tessera.Strategy(job, model, {**given, "lm_head.weight": given[matrix]})
    assert abs(again.evaluate(BATCH).loss - trained) < 1e-6
    again.close()
    again.close()
    refused("lm_head.weight differs", lambda: tessera.Strategy(job, model, {**given, "lm_head.weight": given[matrix] + 1}), "bad data")
    refused("after close()", lambda: again.evaluate(BATCH))

    # Memory: what is given is copied and let go of, refused or not; what is got outlives its strategy.
    def let_go(array, call):
        watch = weakref.ref(array)
        call(array)
        del array
        gc.collect()
        assert watch() is None, "an array is kept"

    one = make(strategy="single")
    for dtype in (numpy.int32, numpy.int64, numpy.uint8, numpy.uint64):
        losses = []
        let_go((rows[:4] % 200).astype(dtype), lambda array: losses.append(one.evaluate({"input_ids": array}).loss))
        assert losses == [one.evaluate({"input_ids": rows[:4] % 200}).loss], (dtype, losses)
    let_go(rows[:4].astype(numpy.float32), lambda array: refused("is of Float", lambda: one.evaluate({"input_ids": array})))
    let_go(rows[:4].astype(numpy.complex64), lambda array: refused("is of Complex", lambda: one.evaluate({"input_ids": array})))
    backwards = lambda array: refused("a negative one is not read", lambda: one.evaluate({"input_ids": array[:, ::-1]}))
    let_go(rows[:4].copy(), backwards)
    changed = {name: array.copy() for name, array in arrays.items()}
    copied = tessera.Strategy(job, model, changed)
    for array in changed.values():
        array[...] = 0
    watches = [weakref.ref(array) for array in changed.values()]
    del array
    changed.clear()
    assert [watch() for watch in watches] == [None] * len(arrays), "an array is kept"
    assert abs(copied.evaluate(BATCH).loss - trained) < 1e-6
    mine = copied.parameters()
    copied.close()
    assert all(numpy.array_equal(numpy.from_dlpack(mine.pop(name)), array) for name, array in arrays.items())
    few = dict(given)
    few.pop(matrix)
    refused(f'{matrix}" of model', lambda: tessera.Strategy(job, model, few))
    refused("the nearest is", lambda: tessera.Strategy(job, model, {**few, matrix.replace("word", "wrd"): given[matrix]}))
    refused("has shape [2, 3]", lambda: tessera.Strategy(job, model, {**given, matrix: numpy.zeros((2, 3), numpy.float32)}))
    refused("is of Long", lambda: tessera.Strategy(job, model, {**given, matrix: given[matrix].astype(numpy.int64)}))
    refused("has no __dlpack__", lambda: tessera.Strategy(job, model, {**given, matrix: [1.0]}))
    refused("lies on cuda:0, this rank works on cpu", lambda: tessera.Strategy(job, model, {**given, matrix: OnGpu()}))

    # A step, saved in its midst, goes on under another strategy.
    micro = [{"input_ids": rows[i:i + 2], "attention_mask": numpy.ones((2, 24), bool)} for i in (0, 2)]
    one, other = make(weight_decay=0.1), make(strategy="fsdp", weight_decay=0.1, seed=7)
    for step in range(3):
        if step == 2:
            assert one.save(str(folder / "saved")).endswith("checkpoint-2")
            assert other.load(str(folder / "saved/checkpoint-2")) == 2
        losses = [s.forward_backward(micro).loss for s in ([one] if step < 2 else [one, other])]
        norms = [s.clip(0.5) for s in ([one] if step < 2 else [one, other])]
        assert norms[0].norm > 0.5 and norms[0].coefficient < 1 and not norms[0].skipped
        for s in [one] if step < 2 else [one, other]:
            s.optimizer_step(1e-2)
    assert abs(losses[0] - losses[1]) < 1e-5 and abs(norms[0].norm - norms[1].norm) < 1e-5, (losses, norms)
    refused("clip() a second time", lambda: (one.forward_backward(BATCH), one.clip(1), one.clip(1)))
    one.optimizer_step(0.0)
    refused("optimizer_step() without a gradient", lambda: one.optimizer_step(1e-3))
    refused("clip() without a gradient", lambda: one.clip(1))
    refused("learning rate", lambda: (one.forward_backward(BATCH), one.optimizer_step(float("nan"))))
    one.optimizer_step(0.0)
    one.forward_backward(BATCH)
    assert one.load(str(folder / "saved")) == 2  # a gradient of before is gone
    one.forward_backward(BATCH)
    one.optimizer_step(0.0)
    refused("is no directory", lambda: one.load(str(folder / "nowhere")))
    for word in ("auto", "none"):  # what the programs' flag knows are folders here
        (folder / word).mkdir()
        before = os.getcwd()
        os.chdir(folder)
        refused("holds no checkpoint", lambda: one.load(word))
        os.chdir(before)
    refused("exists", lambda: one.export(str(out / "final")), "invalid argument")

    # Text: the same in whatever batch, and a half precision whose scale is kept.
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    texts = one.generate(prompts, max_new_tokens=5, ignore_eos=True)
    assert [len(text) for text in texts] == [5, 5, 5]
    assert texts[1] == one.generate(prompts[1:2], max_new_tokens=5, ignore_eos=True)[0]
    refused("prompt", lambda: one.generate([[10**6]], max_new_tokens=2))
    half = make(dtype="fp16", initial_loss_scale=1024)
    half.forward_backward(BATCH)
    half.optimizer_step(1e-3)
    assert half.loss_scale == 1024 and half.updates == 1 and half.memory()["optimizer_bytes"] > 0

    # Classes.
    classifier = tessera.Strategy(job, tessera.Model.from_config("bloom-mini", head="classification", num_labels=3))
    labelled = {"input_ids": rows[:4], "labels": numpy.array([0, 1, 2, -100], numpy.int32)}
    result = classifier.forward_backward(labelled)
    assert result.target_count == 3 and len(result.counters) == 1 and result.sample_count == 4 and result.token_count == 96
    refused("they must be one a row", lambda: classifier.evaluate(BATCH))
    refused("classes go from 0 to 2", lambda: classifier.evaluate({**labelled, "labels": numpy.array([0, 1, 3, 0])}))
    refused("num_labels", lambda: tessera.Model.from_config("bloom-mini", head="classification"))

    # What is no batch.
    for batch, text in (({"input_ids": rows[:4].astype(numpy.float64)}, "input_ids is of Double; it must be of integers"),
                        ({"input_ids": rows[0]}, "input_ids have shape [24]; they must be [rows, tokens]"),
                        ({"input_ids": rows[:0]}, "input_ids have shape [0, 24]"),
                        ({"input_ids": rows[:4], "labels": rows[:3]}, "labels have shape [3, 24]; they must have that of input_ids, [4, 24]"),
                        ({"input_ids": rows[:4] + 10**6}, "ids of the model go from 0 to"),
                        ({"input_ids": rows[:4] - 2**40}, "which is no id"),
                        ({"input_ids": rows[:4], "mask": rows}, 'unknown key "mask"'),
                        ({"labels": rows}, "has no input_ids"),
                        ({"input_ids": rows[:4], "attention_mask": numpy.zeros((4, 24), int)}, "attention_mask leaves row 0 no token"),
                        ({"input_ids": rows[:4].tolist()}, "is of type list, which has no __dlpack__"),
                        ({"input_ids": OnGpu()}, "input_ids lies on cuda:0"),
                        ({"input_ids": rows[:4, ::-1].view(">i8")}, "input_ids does not give its memory"),
                        ([], "there is no micro-batch"),
                        ([rows], "micro-batch 0 is of type"),
                        (rows, "a batch is a dictionary of arrays")):
        refused(text, lambda: other.evaluate(batch))
    refused("has no setting strateg", lambda: make(strateg="zero2"))
    refused("'zero9'", lambda: make(strategy="zero9"))
    refused("are of type int", lambda: tessera.Strategy(job, model, 3))
    refused("settings are texts, numbers or booleans", lambda: make(strategy=["zero2"]))
    refused("bloom-mino", lambda: tessera.Model.from_config("bloom-mino"))
    described = '{"model_type": "bloom", "n_layer": 1, "hidden_size": 32, "n_head": 4, "vocab_size": 100%s}'
    assert tessera.Model.from_config(described % "").vocab_size == 100
    refused('is not supported; supported are bloom', lambda: tessera.Model.from_config('{"model_type": "nope"}'))
    refused("hidden_dropout", lambda: tessera.Model.from_config(described % ', "hidden_dropout": "much"'))
    refused("not accepted as JSON", lambda: tessera.Model.from_config("{broken"))
    refused("nowhere.json: cannot be opened", lambda: tessera.Model.from_config(folder / "nowhere.json"), "bad data")
    refused("head is", lambda: tessera.Model.from_config("bloom-mini", head="lm"))

    # Another thread goes on while a step is made, and cannot make one itself. It runs only where the lock is given back.
    sys.setswitchinterval(1000)
    begun, done, seen = threading.Event(), threading.Event(), []

    def beside():
        begun.wait()
        try:
            one.memory()
        except tessera.Error as error:
            seen.append(str(error))
        seen.append(done.is_set())

    thread = threading.Thread(target=beside)
    thread.start()
    begun.set()
    large = numpy.tile(rows, (4, 4))
    one.forward_backward({"input_ids": large})
    done.set()
    thread.join()
    sys.setswitchinterval(0.005)
    assert seen == ["memory() while another thread is in forward_backward(): one thread at a time works with a job", False], seen

refused("after the end of its job", lambda: one.forward_backward(BATCH))
refused("the job has ended", lambda: job.barrier())

# What another thread does ends before the job does.
begun, ended = threading.Event(), []


def steps_for_ever(strategy):
    while True:
        try:
            strategy.forward_backward(BATCH)
            strategy.optimizer_step(1e-3)
            begun.set()
        except tessera.Error as error:
            ended.append(str(error))
            return


try:
    with tessera.Job() as job:
        thread = threading.Thread(target=steps_for_ever, args=(make(),))
        thread.start()
        begun.wait()
        raise KeyError("goes on as it is")
except KeyError:
    thread.join()
    assert any(text in ended[0] for text in ("while the job ends", "after the end of its job")), ended
    print("all as it should be")
