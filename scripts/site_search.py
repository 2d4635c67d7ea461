#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks the built site's own search what people type, and looks at the first hit. Needs the environment of scripts/site.sh.

site_search.py [--all] [PHRASE...]     --all: also prints what is as expected; PHRASE: prints the first five hits instead
"""
import json
import pathlib
import re
import sys

from py_mini_racer import MiniRacer

SITE = pathlib.Path(__file__).resolve().parent.parent / "build/site"
# What is typed -> pages one of which must come first.
EXPECTED = {
    "zero3": ["get-started/choose-a-strategy.html"],
    "own loss": ["library/own-model.html"],
    "two nodes slurm": ["guides/slurm.html"],
    "out of memory": ["get-started/faq.html"],
    "oom": ["get-started/faq.html"],
    "install": ["get-started/install.html"],
    "lora": ["guides/adapters.html"],
    "chat template": ["guides/chats.html"],
    "resume": ["guides/checkpoints.html"],
    "checkpoint": ["guides/checkpoints.html"],
    "multiple gpus": ["get-started/choose-a-strategy.html"],
    "how many gpus do i need": ["get-started/choose-a-strategy.html", "get-started/faq.html"],
    "docker": ["guides/containers.html"],
    "kubernetes": ["guides/kubernetes.html"],
    "infiniband": ["guides/networks.html"],
    "nccl timeout": ["guides/networks.html", "guides/clusters.html"],
    "mpirun": ["guides/clusters.html"],
    "deepspeed config": ["migrate/deepspeed.html"],
    "accelerate": ["migrate/fsdp-accelerate.html"],
    "slow training": ["guides/slow-runs.html"],
    "profiler": ["guides/profiling.html"],
    "gradient checkpointing": ["guides/planning.html"],
    "vllm": ["get-started/tutorial-chat.html"],
    "tutorial": ["get-started/tutorial-chat.html"],
    "csv file": ["guides/data.html"],
    "learning rate": ["reference/flags.html"],
    "export to hugging face": ["migrate/hf-trainer.html", "guides/checkpoints.html"],
    "own optimizer": ["library/own-optimizer.html"],
    "python": ["library/python.html"],
    "api reference": ["library/api.html"],
    "ParallelModule": ["library/three-ways.html", "library/api.html"],
    "DeviceMesh": ["library/api.html"],
}
# What a browser gives to the theme's search worker.
AROUND = """var self = globalThis, sent = [], handlers = [], console = {warn() {}, log() {}};
function addEventListener(type, handler) { handlers.push(handler) }
function postMessage(message) { sent.push(message) }
function importScripts() {}
function tell(type, data) { sent = []; handlers.forEach(handler => handler({data: {type, data}})) }
"""
SETUP, QUERY = 0, 2


class Search:
    def __init__(self, site):
        worker = next((site / "assets/javascripts/workers").glob("search.*.min.js"))
        self.engine = MiniRacer()
        self.engine.eval(AROUND + worker.read_text(encoding="utf-8"))
        index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
        self.engine.eval(f"tell({SETUP}, {json.dumps({**index, 'options': {'suggest': False}})})")

    def hits(self, phrase):
        """Pages in their order, each with the place on it that fits best."""
        self.engine.eval(f"tell({QUERY}, {json.dumps(phrase)})")
        found = self.engine.eval("JSON.stringify(sent[0].data.items.map(page => page.map(part => [part.location, part.score])))")
        return [max(page, key=lambda part: part[1])[0] for page in json.loads(found)]


def main(words, search):
    phrases = [word for word in words if word != "--all"]
    for phrase in phrases:
        print(phrase, *(f"  {hit}" for hit in search.hits(phrase)[:5]), sep="\n")
    if phrases:
        return 0
    wrong = 0
    for phrase, pages in EXPECTED.items():
        hits = search.hits(phrase)
        first = re.sub("#.*", "", hits[0]) if hits else ""
        wrong += first not in pages
        if first not in pages:
            print(f"search: '{phrase}' finds {', '.join(hits[:3]) or 'nothing'} first, not {' or '.join(pages)}", file=sys.stderr)
        elif "--all" in words:
            print(f"'{phrase}': {hits[0]}")
    print(f"search: {len(EXPECTED) - wrong} of {len(EXPECTED)} phrases find their page first")
    return 1 if wrong else 0


if __name__ == "__main__":
    search = Search(SITE)
    try:
        status = main(sys.argv[1:], search)
    finally:
        search.engine.close()  # its threads would keep the process
    sys.exit(status)
