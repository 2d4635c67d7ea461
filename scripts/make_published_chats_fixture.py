# SPDX-License-Identifier: MIT
"""Writes tests/unit/data/fixtures/published_chats.json: chats under published templates, as transformers and TRL write them.

A case has the text of transformers (`published`; null: refused; absent: that of training), and what is trained: text, ids, the ranges
of trained tokens. The form and its mask are TRL's where it has one (Qwen3, Phi-3, Phi-3.5, gpt-oss); else they are written below.
Needs transformers 5, trl and jinja2. Usage: make_published_chats_fixture.py [repository root [NAME=FILE of a template]...]
"""
import hashlib
import importlib.util
import json
import pathlib
import re
import sys

from transformers import AddedToken, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
PATH = ROOT / "tests/unit/data/fixtures/published_chats.json"
TRL = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
DATE = "2026-01-01"  # in the place of today's
CHATML = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
PHI = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]
DEEPSEEK = [f"<｜{name}｜>" for name in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin",
                                         "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end")]
MISTRAL = ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
# name: bos, eos, tokens of its own, licence
FAMILIES = {
    "Qwen3": (None, "<|im_end|>", CHATML, "Apache-2.0"),
    "Qwen3, first": (None, "<|im_end|>", CHATML, "Apache-2.0"),
    "Phi-3": ("<s>", "<|endoftext|>", PHI, "MIT"),
    "Phi-3.5": ("<s>", "<|endoftext|>", PHI, "MIT"),
    "Phi-4-mini": ("<|endoftext|>", "<|endoftext|>", PHI, "MIT"),
    "phi-4": ("<|endoftext|>", "<|im_end|>", ["<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>"], "MIT"),
    "gpt-oss": ("<|startoftext|>", "<|return|>", ["<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"], "Apache-2.0"),
    "DeepSeek-R1-Distill": (DEEPSEEK[0], DEEPSEEK[1], DEEPSEEK + ["<think>", "</think>"], "MIT"),
    "Mistral-Nemo": ("<s>", "</s>", MISTRAL, "Apache-2.0"),
    "Mistral-7B-v0.3": ("<s>", "</s>", MISTRAL, "Apache-2.0"),
}


def user(text):
    return {"role": "user", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


def calls(*those, **more):
    return says("", tool_calls=[{"type": "function", "id": id_, "function": {"name": name, "arguments": given}} for name, given, id_ in those], **more)


def result(text, name="weather", id_="abcdef123"):
    return {"role": "tool", "name": name, "tool_call_id": id_, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = [user("Hi"), says("Hello!")]
ASKED = user("Weather in Zürich?")
CALLED = calls(("weather", {"city": "Zürich", "days": 2}, "abcdef123"))
CODE = "def f(x):\n    if x:\n\treturn  {'a': \"<b> & c\"}\n\n    return None  \n"
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather \"now\".", "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "A city"}, "days": {"type": "integer", "default": 3}}}}},
    {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}]
CHATS = {
    "one turn": ([user("Who are you?"), says("A model.")], None),
    "turns": ([*HELLO, user("2+2?"), says("4."), user("Thanks"), says("Welcome.")], None),
    "system": ([SYSTEM, *HELLO, user("Bye"), says("Bye.")], None),
    "system, one turn": ([SYSTEM, *HELLO], None),
    "system in the middle": ([*HELLO, SYSTEM, user("Bye"), says("Bye.")], None),
    "thoughts": ([user("Hard?"), says("42", reasoning_content="Let me\nthink."), user("Again?"), says("43", reasoning_content="\nOnce more.\n")], None),
    "thoughts, some": ([user("Hard?"), says("42", reasoning_content="Hmm."), *HELLO], None),
    "thoughts in texts": ([user("Hard?"), says("<think>\nhmm\n</think>\n\n42"), user("Again?"), says("<think>so</think>43")], None),
    "tools": ([ASKED, CALLED, result('{"t": 21.5}'), says("21.5 degrees.")], TOOLS),
    "tools, turns": ([SYSTEM, *HELLO, ASKED, CALLED, result('{"t": 21.5}'), says("21.5 degrees."), user("Thanks"), says("Welcome.")], TOOLS),
    "tools, two calls": ([user("Bern?"), calls(("weather", {"city": "Bern"}, "abcdef123"), ("clock", {}, "ghijkl456")), result("7"),
                          result("12:00", "clock", "ghijkl456"), says("7 at noon.")], TOOLS),
    "tools, texts of arguments": ([ASKED, calls(("weather", "{\"city\": \"Bern\"}", "abcdef123")), result("7"), says("7.")], TOOLS),
    "tools, thoughts": ([ASKED, calls(("weather", {"city": "Zürich"}, "abcdef123"), reasoning_content="I look."), result("9"),
                         says("9.", reasoning_content="It is 9."), *HELLO], TOOLS),
    "tools, not called": ([SYSTEM, *HELLO], TOOLS),
    "code and spaces": ([user("Code:\n\n" + CODE), says("```python\n" + CODE + "```"), user("  more \n"), says("\n\n  x = 1\n\n")], None),
    "letters": ([user("Grüße, 世界 🌍!"), says("Ça va? Ж 👩‍🚀"), user("नदी"), says("😀")], None),
    "ends with a question": ([*HELLO, user("And now?")], None),
    "two answers": ([user("Hi"), says("Hello!"), says("Still here.")], None),
}


class Refused(Exception):
    pass


# A chat as pieces of text, and whether the assistant wrote them.
def phi4_mini(messages, tools):
    for message in messages:
        yield f"<|{message['role']}|>", False
        yield message["content"] + "<|end|>", message["role"] == "assistant"
    yield "<|endoftext|>", messages[-1]["role"] == "assistant"


def phi4(messages, tools):
    for message in messages:
        if message["role"] in ("system", "user", "assistant"):
            yield f"<|im_start|>{message['role']}<|im_sep|>", False
            yield message["content"] + "<|im_end|>", message["role"] == "assistant"


def deepseek(messages, tools):
    yield DEEPSEEK[0] + next((m["content"] for m in reversed(messages) if m["role"] == "system"), ""), False
    open_, first = False, True
    for message in messages:
        if message["role"] == "user":
            yield "<｜User｜>" + message["content"], False
            open_ = False
        if message["role"] == "tool":
            yield ("<｜tool▁outputs▁begin｜>" if first else "\n") + "<｜tool▁output▁begin｜>" + message["content"] + "<｜tool▁output▁end｜>", False
            open_, first = True, False
        if message["role"] == "assistant":
            made = message.get("tool_calls") or []
            yield "<｜tool▁outputs▁end｜>" if open_ and not made else "<｜Assistant｜>", False
            open_ = False
            thought, text = message.get("reasoning_content"), message["content"]
            if thought:
                text = "\n\n" + text
            elif "</think>" in text:
                thought, text = text.split("<think>")[1].split("</think>")
            if thought:
                yield "<think>\n", False
                text = thought.strip("\n") + "\n</think>" + text
            parts = []
            for call in made:
                given = call["function"]["arguments"]
                given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                parts.append(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call['function']['name']}\n```json\n{given}\n```<｜tool▁call▁end｜>")
            if parts:
                text += "<｜tool▁calls▁begin｜>" + "\n".join(parts) + "<｜tool▁calls▁end｜>"
            yield text + DEEPSEEK[1], True
    if open_:
        yield "<｜tool▁outputs▁end｜>", False


def mistral(gap):
    def pieces(messages, tools):
        yield "<s>", False
        system = messages[0]["content"] if messages[0]["role"] == "system" else None
        messages = messages[1:] if system is not None else messages
        turns = [m["role"] for m in messages if m["role"] != "tool" and "tool_calls" not in m]
        if turns != [("user", "assistant")[i % 2] for i in range(len(turns))]:
            raise Refused
        place = [m["role"] for m in messages].index("user")
        for i, message in enumerate(messages):
            if message["role"] == "user":
                text = ""
                if i == place and tools:
                    listed = []
                    for tool in tools:
                        named = [f'"{k}": "{v}"' if isinstance(v, str) else f'"{k}": ' + json.dumps(v, ensure_ascii=False)
                                 for k, v in tool["function"].items() if k != "return"]
                        listed.append('{"type": "function", "function": {' + ", ".join(named) + "}}")
                    text = f"[AVAILABLE_TOOLS]{gap}[" + ", ".join(listed) + "][/AVAILABLE_TOOLS]"
                text += "[INST]" + gap
                yield text + (system + "\n\n" if system is not None and i == place else "") + message["content"] + "[/INST]", False
            elif "tool_calls" in message:
                listed = [json.dumps(call["function"], ensure_ascii=False)[:-1] + f', "id": "{call["id"]}"}}' for call in message["tool_calls"]]
                yield f"[TOOL_CALLS]{gap}[" + ", ".join(listed) + "]</s>", True
            elif message["role"] == "assistant":
                yield (" " + message["content"].strip() if gap else message["content"]) + "</s>", True
            else:
                yield f'[TOOL_RESULTS]{gap}{{"content": {message["content"]}, "call_id": "{message["tool_call_id"]}"}}[/TOOL_RESULTS]', False
    return pieces


BY_TRL = {"Qwen3": "qwen3", "Qwen3, first": "qwen3", "Phi-3": "phi3", "Phi-3.5": "phi3_5", "gpt-oss": "gptoss"}
WRITTEN = {"Phi-4-mini": phi4_mini, "phi-4": phi4, "DeepSeek-R1-Distill": deepseek, "Mistral-Nemo": mistral(""), "Mistral-7B-v0.3": mistral(" ")}


def tokenizer_of(family):
    bos, eos, added, _ = FAMILIES[family]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "examples/data/tokenizer", bos_token=None, eos_token=None, unk_token="<unk>", pad_token="<pad>")
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in added])
    tokenizer.bos_token, tokenizer.eos_token = bos, eos  # known by now: their ids stay
    return tokenizer


def dated(text):
    return re.sub(r"(?<=Current date: )\d{4}-\d\d-\d\d", DATE, text)


def rendered(tokenizer, template, chat, **options):
    messages, tools = chat
    try:
        texts, marks = render_jinja_template([messages], tools=tools, chat_template=template, return_assistant_tokens_mask=True,
                                             **tokenizer.special_tokens_map, **options)
    except Exception:
        return None, None
    return dated(texts[0]), marks[0]


def training(family, tokenizer, template, chat):
    """The text and the characters that are trained; nothing: refused."""
    if family in BY_TRL:
        return rendered(tokenizer, (TRL / f"{BY_TRL[family]}_training.jinja").read_text(encoding="utf-8"), chat)
    text, marks = "", []
    try:
        for piece, trained in WRITTEN[family](*chat):
            if trained:
                marks.append([len(text), len(text) + len(piece)])
            text += piece
    except Refused:
        return None, None
    return text, marks


def keeps_beginnings(tokenizer, template, chat):
    """Whether the published template is prefix-preserving for the chat: every answer continues its prompt, and the whole begins with both."""
    messages, tools = chat
    whole = rendered(tokenizer, template, chat)[0]
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            before = rendered(tokenizer, template, (messages[:i], tools), add_generation_prompt=True)[0]
            after = rendered(tokenizer, template, (messages[:i + 1], tools))[0]
            if before is None or after is None or not (after.startswith(before) and whole.startswith(after.rstrip())):
                return False
    return True


def main():
    known = json.loads(PATH.read_text(encoding="utf-8"))["templates"] if PATH.exists() else {}
    for argument in sys.argv[2:]:
        name, file = argument.split("=", 1)
        known[name] = {"text": pathlib.Path(file).read_text(encoding="utf-8").rstrip()}
    templates, cases, counts = {}, [], {"equal": 0, "kept": 0, "of them equal": 0, "refused": 0}
    for family, (bos, eos, added, licence) in FAMILIES.items():
        template, tokenizer = known[family]["text"], tokenizer_of(family)
        if family in BY_TRL and family != "Qwen3, first":  # TRL takes its form for this very text
            assert (TRL / f"{BY_TRL[family]}.jinja").read_text(encoding="utf-8").rstrip() == template, family
        templates[family] = {"bos_token": bos, "eos_token": eos, "licence": licence, "added": added, "text": template}
        for name, chat in CHATS.items():
            published = rendered(tokenizer, template, chat)[0]
            prompt = rendered(tokenizer, template, chat, add_generation_prompt=True)[0]
            text, marks = training(family, tokenizer, template, chat)
            one = {"template": family, "chat": name}
            if published != text:
                one["published"] = published
            one["prompt"] = None if prompt is None else hashlib.sha256(prompt.encode()).hexdigest()[:16]
            if text is None:
                one["text"] = None
                counts["refused"] += 1
            else:
                encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
                ids, offsets, ranges = encoded["input_ids"], encoded["offset_mapping"], []
                for i, (begin, end) in enumerate(offsets):
                    if any(begin < b and end > a for a, b in marks):
                        if ranges and ranges[-1][1] == i:
                            ranges[-1][1] = i + 1
                        else:
                            ranges.append([i, i + 1])
                kept = published is not None and keeps_beginnings(tokenizer, template, chat)
                counts["equal"] += published == text
                counts["kept"] += kept
                counts["of them equal"] += kept and published == text
                if kept and published != text:
                    print(f"{family}, {name}: keeps beginnings, but differs:\n  {published!r}\n  {text!r}")
                one |= {"text": text, "ids": hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16], "tokens": len(ids), "trained": ranges}
            cases.append(one)
    line = lambda value: json.dumps(value, ensure_ascii=False)
    PATH.write_text('{"date": ' + line(DATE) + ',\n"templates": {\n' + ",\n".join(f"{line(name)}: {line(value)}" for name, value in templates.items()) +
                    '\n},\n"chats": {\n' + ",\n".join(f"{line(name)}: {line({'messages': m, **({'tools': t} if t else {})})}" for name, (m, t) in CHATS.items()) +
                    '\n},\n"cases": [\n' + ",\n".join(map(line, cases)) + "\n]}\n", encoding="utf-8")
    print(f"{len(templates)} templates, {len(cases)} cases: {counts}")


if __name__ == "__main__":
    main()
