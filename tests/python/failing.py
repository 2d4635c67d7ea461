# SPDX-License-Identifier: MIT
"""Two ranks, the second of which does something wrong. Usage: failing.py CASE"""
import os
import signal
import sys
import time

import numpy
import tessera

case = sys.argv[1]
with tessera.Job() as job:
    wrong = job.rank == 1
    seed = 2 if case == "settings" and wrong else 1
    model = tessera.Model.from_config("bloom-mini")
    weights = None
    if case == "weights":
        weights = {name: numpy.full(shape, 1 + wrong, numpy.float32) for name, shape in model.parameter_shapes()}
    strategy = tessera.Strategy(job, model, weights, strategy="zero3", seed=seed)
    ids = numpy.arange(32).reshape(2, 16)
    for step in range(4):
        if wrong and step == 2:
            if case == "exception":
                raise ValueError("rank 1 has had enough")
            if case == "batch":
                ids = ids.astype(numpy.float32)
            if case == "ends":
                break
            if case == "closes":
                strategy.close()
                break
            if case == "exit":
                sys.exit(3)
            if case == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(100)
        if case == "interrupt_all" and step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        strategy.forward_backward({"input_ids": ids})
        strategy.optimizer_step(1e-3)
