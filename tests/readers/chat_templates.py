# SPDX-License-Identifier: MIT
"""Chat templates as transformers renders them: texts, their ids, and which parts of them the assistant wrote.

Usage: chat_templates.py SOURCE_ROOT BIN_FOLDER TEMPLATES... (folders with *.jinja), in the environment that run.sh makes.
Every template is rendered with every chat, with and without a generation prompt; what one side refuses the other has to refuse.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

ROOT, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
LEAST = 40
TOKENIZER = ROOT / "examples/data/tokenizer"


def turns(*texts, system=None):
    chat = [{"role": "system", "content": system}] if system is not None else []
    return chat + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def call(name, arguments, id_="abcdef123"):
    return {"type": "function", "id": id_, "function": {"name": name, "arguments": arguments}}


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather \"now\" in a city.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "A city, e.g. Zürich"}, "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["C", "F"]}, "at": {"type": "array", "items": {"type": "number"}},
        "deep": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}}},
    "return": {"type": "object", "description": "degrees"}}},
    {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}]
ASKED = {"role": "user", "content": "Weather in Zürich & Bern?"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [call("weather", {"city": "Zürich", "days": 2, "deep": {"a": None}, "at": [1, 2.5]})]}
TWO_CALLS = {"role": "assistant", "content": "I look.", "tool_calls": [call("weather", {"city": "Bern"}), call("clock", {}, "ghijkl456")]}
RESULTS = [{"role": "tool", "name": "weather", "tool_call_id": "abcdef123", "content": "{\"t\": 21.5}"}]
CHATS = {
    "one turn": (turns("Who are you?", "A model."), None),
    "turns": (turns("Hi", "Hello!", "2+2?", "4.", "Thanks", "Welcome."), None),
    "system": (turns("Hi", "Hello!", "Bye", "Bye.", system="Be brief."), None),
    "asks": (turns("Hi", "Hello!", "And now?", system="Be brief."), None),
    "letters": (turns("Grüße, 世界 🌍!\u00a0\u2028x", "Ça va? \u0416 \U0001f469\u200d\U0001f680"), None),
    "blanks": (turns("  \n leading", "\n\n answer \n\n", "trailing \t\n", " x "), None),
    "marks": (turns("<b>\"it's\" & 'more'</b> {{ x }} {% if %}", "\\n \\ \"quoted\" <|im_end|> {# c #}"), None),
    "tools": ([ASKED, CALLS, *RESULTS, {"role": "assistant", "content": "21.5 degrees."}], TOOLS),
    "tools, system": ([{"role": "system", "content": "Use tools."}, ASKED, TWO_CALLS, *RESULTS,
                       {"role": "tool", "name": "clock", "tool_call_id": "ghijkl456", "content": "12:00"},
                       {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"},
                       {"role": "assistant", "content": "Welcome."}], TOOLS),
    "tools, not called": (turns("Hi", "Hello!", system="Use tools."), TOOLS),
    "calls as texts": ([ASKED, {"role": "assistant", "content": None, "tool_calls": [call("weather", "{\"city\": \"Bern\"}")]}, *RESULTS], TOOLS),
    "reasoning": ([*turns("Hard?"), {"role": "assistant", "content": "42", "reasoning_content": "Let me\nthink."},
                   *turns("Again?"), {"role": "assistant", "content": "43", "reasoning_content": "Once more."}], None),
    "thoughts in text": (turns("Hard?", "<think>\nhmm\n</think>\n\n42", "Again?", "<think>so</think>43"), None),
    "two user turns": ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], None),
    "assistant first": ([{"role": "assistant", "content": "Hello!"}, *turns("Hi", "Yes?")], None),
    "long": (turns(*[f"Turn {i}: " + "word " * i for i in range(12)], system="One.\nTwo."), None),
    "two systems": ([*turns("Hi", "Hello!", system="A"), {"role": "system", "content": "B"}, *turns("Yes", "No")], None),
    "empty": (turns("", "Hm?", "x", ""), None),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Part one. "}, {"type": "text", "text": "Two."}]},
               {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}], None),
    "unknown role": ([{"role": "narrator", "content": "Once"}, *turns("Hi", "Hello!")], None),
}


def refused(render):
    try:
        return render()
    except Exception as error:  # whatever Python says: ours has to refuse it, too
        return error


def bytes_of(text, spans):
    return [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans if a < b]


def added(render, messages, turn, whole):
    """The answer's part of the whole text, by rendering the chat before it and with it; None: they do not begin it."""
    before, after = render(messages[:turn], True), render(messages[:turn + 1], False)
    if isinstance(before, Exception) or isinstance(after, Exception):
        return None
    said = messages[turn].get("content")
    said = said.rstrip() if isinstance(said, str) else ""
    end = after.rstrip()
    if said and end.endswith(said):
        end = after
    return (len(before), len(end)) if whole.startswith(before) and whole.startswith(end) and len(end) >= len(before) else None


def masks(tokenizer, template, messages, tools, whole):
    # Not apply_chat_template, which takes no empty chat; it leaves out what is null.
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]

    def rendered(part, **options):
        return render_jinja_template([part], tools=tools, chat_template=template, **tokenizer.special_tokens_map, **options)

    def render(part, prompt):
        return refused(lambda: rendered(part, add_generation_prompt=prompt)[0][0])

    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if "{% generation" in template or "{%- generation" in template:
        def marks(part):
            return rendered(part, return_assistant_tokens_mask=True)[1][0]

        every = marks(messages)
        earlier = refused(lambda: marks(messages[:answers[-1]])) if answers else []
        return bytes_of(whole, every), None if isinstance(earlier, Exception) else bytes_of(whole, every[len(earlier):])
    spans = [added(render, messages, turn, whole) for turn in answers]
    every = None if None in spans else bytes_of(whole, spans)
    last = [] if not spans else None if spans[-1] is None else bytes_of(whole, spans[-1:])
    return every, last


def token_mask(tokenizer, messages, tools):
    """transformers' mask; of a character of several tokens that ends an answer it has the first alone, here are all."""
    told = tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True,
                                         tokenizer_kwargs={"return_offsets_mapping": True})
    mask, offsets = told["assistant_masks"], told["offset_mapping"]
    for i in range(1, len(mask)):
        mask[i] |= mask[i - 1] and offsets[i] == offsets[i - 1]
    return mask


class Ours:
    def __init__(self):
        self.process = subprocess.Popen([BIN / "render_chats"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def render(self, directory, messages, tools, prompt):
        row = {"directory": str(directory), "messages": messages, "prompt": prompt, **({"tools": tools} if tools else {})}
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def compare(ours, tokenizer, directory, counts):
    """Differences of one template, and how many renderings and masks were compared."""
    template = tokenizer.chat_template
    for name, (messages, tools) in CHATS.items():
        for prompt in (False, True):
            expected = refused(lambda: tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt))
            found = ours.render(directory, messages, tools, prompt)
            counts["renderings"] += 1
            if isinstance(expected, Exception) or "error" in found:
                counts["refused by both"] += isinstance(expected, Exception) and "error" in found
                if not (isinstance(expected, Exception) and "error" in found):
                    yield f"{name}, prompt {prompt}: expected {expected!r}, found {found}"
                continue
            if found["text"] != expected:
                yield f"{name}, prompt {prompt}: expected {expected!r}, found {found['text']!r}"
            if found["ids"] != tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, return_dict=False):
                yield f"{name}, prompt {prompt}: other ids of {expected!r}"
            if prompt or found["form"]:  # published_chats_test.cpp compares training forms
                continue
            if found["marks"] and "mask" in found:
                counts["token masks"] += 1
                wanted = token_mask(tokenizer, messages, tools)
                if found["mask"] != wanted:
                    yield f"{name}, trained tokens: expected {wanted}, found {found['mask']} in {expected!r}"
            for which, spans in zip(("assistant", "last"), masks(tokenizer, template, messages, tools, expected)):
                counts["masks"] += 1
                counts["masks refused by both"] += spans is None and isinstance(found[which], str)
                if spans != found[which] and not (spans is None and isinstance(found[which], str)):
                    yield f"{name}, mask of {which}: expected {spans}, found {found[which]} in {expected!r}"


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_chats_"))
    files = sorted(path for argument in sys.argv[3:] for path in pathlib.Path(argument).rglob("*.jinja"))
    ours, equal, counts = Ours(), 0, dict.fromkeys(("renderings", "refused by both", "masks", "masks refused by both", "token masks"), 0)
    for file in files:
        directory = folder / file.stem
        shutil.copytree(TOKENIZER, directory, dirs_exist_ok=True)
        shutil.copyfile(file, directory / "chat_template.jinja")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        differences = list(compare(ours, tokenizer, directory, counts))
        equal += not differences
        for difference in differences:
            print(f"{file.name}: {difference}")
        shutil.rmtree(directory)
    print(f"{equal} of {len(files)} chat templates equal, {len(CHATS)} chats each: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    return 0 if equal == len(files) and len(files) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
