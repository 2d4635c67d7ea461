// SPDX-License-Identifier: MIT
#include "lib/data/training_forms.h"

#include <algorithm>
#include <span>

#include "lib/core/hash.h"
#include "lib/data/jinja/text.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Replaces the text from `from` up to `until`, or `from` alone, by `with`.
struct Edit {
  std::string_view from, until, with;
};

// Every answer keeps its reasoning, even if empty, like the last one.
constexpr Edit kQwen3[] = {
    {"{%- if loop.index0 > ns.last_query_index %}", "{%- if message.tool_calls %}",
     R"({{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {{- '<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {{- content.lstrip('\n') }}
        )"},
    {R"({%- elif message.role == "tool" %})", "",
     R"({%- endgeneration %}
    {%- elif message.role == "tool" %})"}};

constexpr std::string_view kEndOfPhi = "{% else %}{{ eos_token }}{% endif %}";
constexpr std::string_view kMarkedEndOfPhi =
    "{% elif messages[-1]['role'] == 'assistant' %}"
    "{% generation %}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ eos_token }}{% endif %}";

constexpr Edit kPhi3[] = {
    {"{% elif message['role'] == 'assistant' %}", "{% endif %}{% endfor %}",
     R"({% elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' }}{% generation %})"
     R"({{ message['content'] + '<|end|>\n' }}{% endgeneration %})"},
    {kEndOfPhi, "", kMarkedEndOfPhi}};

constexpr Edit kPhi4Mini[] = {
    {"{% else %}{{ '<|' + message['role']", "",
     "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' }}{% generation %}"
     "{{ message['content'] + '<|end|>' }}{% endgeneration %}"
     "{% else %}{{ '<|' + message['role']"},
    {kEndOfPhi, "", kMarkedEndOfPhi}};

constexpr Edit kGptOss[] = {{R"({%- if "tool_calls" in message %})", "",
                             R"({%- generation %}{%- if "tool_calls" in message %})"},
                            {R"({%- elif message.role == 'tool' -%})", "",
                             R"({%- endgeneration %}{%- elif message.role == 'tool' -%})"}};

// Reasoning is kept and starts like the generation prompt. Tool calls are written whatever the
// content.
constexpr Edit kDeepSeek[] = {
    {"{%- if message['role'] == 'assistant' and message['content'] is none %}",
     "{%- if message['role'] == 'tool' %}", R"({%- if message['role'] == 'assistant' %}
    {%- set said = message['content'] or '' %}
    {%- set thought = message['reasoning_content'] or '' %}
    {%- set thinks = thought or '</think>' in said %}
    {%- if thought %}
        {%- set said = '\n\n' + said %}
    {%- elif thinks %}
        {%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
        {%- set said = said.split('</think>')[-1] %}
    {%- endif %}
    {%- set follows = ns.is_tool and not message['tool_calls'] %}
    {{- '<｜tool▁outputs▁end｜>' if follows else '<｜Assistant｜>' }}
    {{- '<think>\n' if thinks else '' }}
    {%- generation %}
        {{- thought.strip('\n') + '\n</think>' if thinks else '' }}
        {{- said }}
        {%- for tool in message['tool_calls'] or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
            {{- '<｜tool▁call▁begin｜>' + (tool['type'] or 'function') + '<｜tool▁sep｜>' }}
            {%- set call = tool['function'] %}
            {%- set given = call['arguments'] %}
            {{- call['name'] + '\n```json\n' + (given if given is string else given | tojson) }}
            {{- '\n```<｜tool▁call▁end｜>' }}
            {{- '<｜tool▁calls▁end｜>' if loop.last else '' }}
        {%- endfor %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- endgeneration %}
    {%- set ns.is_tool = false %}
{%- endif %})"}};

// System message and tools stand before the first user message, or before the last one.
constexpr Edit kMistral[] = {
    {"{%- set ns.index = 0 %}", "", "{%- set ns.index = 0 %}{%- set ns.place = none %}"},
    {R"({%- if not (message.role == "tool")", "",
     R"({%- if message.role == "user" and (last_answer_only or ns.place is none) %}
        {%- set ns.place = loop.index0 %}
    {%- endif %}
    {%- if not (message.role == "tool")"},
    {"(message == user_messages[-1])", "", "loop.index0 == ns.place"},
    {"loop.last and system_message is defined", "",
     "loop.index0 == ns.place and system_message is defined"},
    {R"({{- "[TOOL_CALLS])", "", R"({%- generation %}{{- "[TOOL_CALLS])"},
    {R"({%- elif message["role"] == "assistant" %})", "",
     R"({%- endgeneration %}{%- elif message["role"] == "assistant" %}{%- generation %})"},
    {R"({%- elif message["role"] == "tool_results")", "",
     R"({%- endgeneration %}{%- elif message["role"] == "tool_results")"}};

struct Form {
  const char* name;
  const char* differs;
  std::span<const Edit> edits;
  bool marks_end = false;
};
constexpr Form kForms[] = {
    {"Qwen3", "every answer keeps its thoughts, or an empty block of them", kQwen3},
    {"Phi-3", "the text is the same", kPhi3, true},
    {"Phi-4-mini", "the text is the same", kPhi4Mini, true},
    {"gpt-oss", "the text is the same", kGptOss},
    {"DeepSeek-R1-Distill", "every answer keeps its thoughts", kDeepSeek},
    {"Mistral",
     "system and tools stand before the user's first message, with --train_on last before the last",
     kMistral}};

// sha256: of the published text without white space at its end.
struct Published {
  std::string_view sha256;
  const Form& form;
};
constexpr Published kPublished[] = {
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", kForms[0]},
    // The first version.
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", kForms[0]},
    {"dcaee66df77bfbb789ec541fe713218da30225a526f1db97138fc39ee6dc56aa", kForms[1]},
    {"78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90", kForms[1]},  // Phi-3.5
    {"febf589225c9728ab791f52e8897d7607a823d45368f0a4c92fa68997b40cce9", kForms[2]},
    {"a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146", kForms[3]},
    {"56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f", kForms[4]},
    {"e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e", kForms[5]},   // Nemo
    {"cafb64e0e9e5fd2503054b3479593fae39cbdfd52338ce8af9bb4664a8eb05bd", kForms[5]}};  // 7B v0.3

std::string edited(std::string text, const Form& form) {
  for (const Edit& edit : form.edits) {
    const size_t begin = text.find(edit.from);
    const size_t end = edit.until.empty() ? begin + edit.from.size() : text.find(edit.until, begin);
    check(begin != std::string::npos && end != std::string::npos, ErrorCode::kInternal,
          "the training form of ", form.name, " does not fit its template: no ", edit.from);
    text.replace(begin, end - begin, edit.with);
  }
  return text;
}

}  // namespace

std::optional<TrainingTemplate> training_form_of(std::string_view published) {
  const std::string text(jinja::stripped(published, false, true));
  const std::string sha256 = sha256_hex(text);
  const auto* const known = std::ranges::find(kPublished, sha256, &Published::sha256);
  if (known == std::end(kPublished)) return std::nullopt;
  const Form& form = known->form;
  return TrainingTemplate{form.name, form.differs, form.marks_end, edited(text, form)};
}

}  // namespace tessera
