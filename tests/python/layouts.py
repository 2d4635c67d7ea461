# SPDX-License-Identifier: MIT
"""Two ranks: other layouts give the numbers of ddp."""
import numpy
import tessera

LAYOUTS = ({"strategy": "ddp"}, {"pipeline_parallel": 2}, {"tensor_parallel": 2}, {"strategy": "zero3", "offload": "optimizer"}, {"strategy": "fsdp"})

with tessera.Job() as job:
    ids = numpy.arange(64).reshape(4, 16) * 7 % 500
    wanted = None
    for settings in LAYOUTS:
        # Not AdamW, which follows the sign of rounding where a gradient is 0.
        strategy = tessera.Strategy(job, tessera.Model.from_config("bloom-mini"), seed=3, optim="sgd", **settings)
        seen = []
        for _ in range(3):
            seen.append(strategy.forward_backward([{"input_ids": ids[:2]}, {"input_ids": ids[2:]}]).loss)
            seen.append(strategy.clip(0.5).norm)
            strategy.optimizer_step(0.1)
        text = strategy.generate([[1, 2, 3]], max_new_tokens=3, ignore_eos=True)
        weights = {name: numpy.from_dlpack(array) for name, array in strategy.parameters().items()}
        strategy.close()
        wanted = wanted or (seen, text, weights)
        assert numpy.allclose(seen, wanted[0], rtol=1e-5, atol=0), (settings, seen, wanted[0])
        assert text == wanted[1], (settings, text, wanted[1])
        assert weights.keys() == wanted[2].keys(), settings
        assert all(numpy.allclose(array, wanted[2][name], rtol=1e-4, atol=1e-5) for name, array in weights.items()), settings
