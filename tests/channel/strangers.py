# SPDX-License-Identifier: MIT
"""Hostile connections to a job's port: garbage, one byte at a time, silence, forged greetings; during the start and during the run.

The start takes at most a second longer than without them, the memory of rank 0 grows by 16 MiB at most, and the job goes on.

  strangers.py PROGRAM [--connections N]     (PROGRAM: conformance_processes)
"""
import random
import resource
import socket
import struct
import threading
import time

from jobs import command_line, fail, free_port, job, wait_for_line

arguments = command_line("program", connections=3000)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
HELD = 1000  # connections that stay open at a time


def pack(*items):
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def frame(kind, payload):
    return bytes([kind]) + struct.pack("<I", len(payload)) + payload


FORGED = frame(1, pack(b"tessera 4", b"", b"0" * 64, b"1", b"2", b"evil\x1b[31m", b"random", b"", b""))
KINDS = [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 5000, FORGED, frame(1, b"\xff" * 4000), b"\x01\xff\xff\xff\x0f", b"\x01", b""]


class Strangers(threading.Thread):
    """Calls until it has called often enough; the slow ones send a byte more at each later call."""

    def __init__(self, port, count):
        super().__init__(daemon=True)
        self.port, self.count, self.called, self.open, self.stop = port, count, 0, [], False

    def run(self):
        draw = random.Random(1)
        while self.called < self.count and not self.stop:
            try:
                caller = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except OSError:
                time.sleep(0.001)  # rank 0 does not listen yet
                continue
            self.called += 1
            try:
                caller.setblocking(False)
                caller.send(draw.choice(KINDS))
                for slow in draw.sample(self.open, min(2, len(self.open))):
                    slow.send(b"\x00")
            except OSError:
                pass  # sent away meanwhile
            self.open.append(caller)
            if len(self.open) > HELD:
                self.open.pop(0).close()


def resident_mib(rank):
    with open(f"/proc/{rank.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def run(count):
    """Seconds until all ranks are there, and rank 0's largest memory in MiB, after half of the strangers at the start and half later."""
    port = free_port()
    begin = time.monotonic()
    early = Strangers(port, count // 2)
    early.start()
    with job([arguments.program, "tcp", "idle"], 2, port, TESSERA_JOB_SECRET="of this test") as ranks:
        wait_for_line(ranks[0], "are here")
        took = time.monotonic() - begin
        early.join()
        late = Strangers(port, count - count // 2)
        late.start()
        late.join()
        for caller in early.open + late.open:
            caller.close()
        if early.called + late.called < count:
            fail("not all strangers called")
        for number, rank in enumerate(ranks):
            if rank.poll() is not None:
                fail(f"strangers ended rank {number}", rank.communicate()[0])
        return took, resident_mib(ranks[0])


# The shortest of a few starts: others use this host, too.
quiet = [run(0) for _ in range(3)]
besieged = [run(arguments.connections) for _ in range(3)]
took, base = min(each[0] for each in besieged), min(each[0] for each in quiet)
mib, base_mib = max(each[1] for each in besieged), min(each[1] for each in quiet)
print(f"{arguments.connections} hostile connections: start {took:.2f} s instead of {base:.2f}, rank 0 {mib:.1f} MiB instead of {base_mib:.1f}")
if took > base + 1:
    fail("the start takes too long")
if mib > base_mib + 16:
    fail("rank 0 takes too much memory")
