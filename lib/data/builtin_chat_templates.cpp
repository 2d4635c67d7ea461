// SPDX-License-Identifier: MIT
#include "lib/data/builtin_chat_templates.h"

namespace tessera {
namespace {

constexpr const char* kChatMl = R"({%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

constexpr const char* kLlama3 = R"({{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

// Roles alternate, and each answer ends with the tokenizer's end token.
constexpr const char* kLlama2 = R"({%- if eos_token is not defined %}
    {{- raise_exception('the tokenizer names no eos_token') }}
{%- endif %}
{%- set ns = namespace(system='', next='user') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' %}
    {%- elif message.role != ns.next %}
        {{- raise_exception('user and assistant take turns, found ' + message.role) }}
    {%- elif message.role == 'user' %}
        {{- bos_token }}
        {{- '[INST] ' + ns.system + message.content | trim + ' [/INST]' }}
        {%- set ns.system = '' %}
        {%- set ns.next = 'assistant' %}
    {%- else %}
        {%- generation %}
            {{- ' ' + message.content | trim + ' ' + eos_token }}
        {%- endgeneration %}
        {%- set ns.next = 'user' %}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kMistral = R"({%- if eos_token is not defined %}
    {{- raise_exception('the tokenizer names no eos_token') }}
{%- endif %}
{{- bos_token }}
{%- set ns = namespace(system='', next='user') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = message.content + '\n\n' %}
    {%- elif message.role != ns.next %}
        {{- raise_exception('user and assistant take turns, found ' + message.role) }}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' + ns.system + message.content + ' [/INST]' }}
        {%- set ns.system = '' %}
        {%- set ns.next = 'assistant' %}
    {%- else %}
        {%- generation %}
            {{- ' ' + message.content | trim + eos_token }}
        {%- endgeneration %}
        {%- set ns.next = 'user' %}
    {%- endif %}
{%- endfor %}
)";

constexpr const char* kZephyr = R"({%- if eos_token is not defined %}
    {{- raise_exception('the tokenizer names no eos_token') }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %}
)";

// No system role: the system message starts the first user message.
constexpr const char* kGemma = R"({{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = message.content | trim + '\n\n' %}
    {%- elif message.role == 'assistant' %}
        {{- '<start_of_turn>model\n' }}
        {%- generation %}
            {{- message.content | trim + '<end_of_turn>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<start_of_turn>' + message.role + '\n' + ns.system + message.content | trim }}
        {{- '<end_of_turn>\n' }}
        {%- set ns.system = '' %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
)";

constexpr const char* kPhi = R"({%- for message in messages %}
    {{- '<|' + message.role + '|>\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + '<|end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %}
)";

}  // namespace

std::span<const BuiltinChatTemplate> builtin_chat_templates() {
  static constexpr BuiltinChatTemplate kTemplates[] = {
      {"chatml", kChatMl}, {"llama-2", kLlama2}, {"llama-3", kLlama3}, {"mistral", kMistral},
      {"zephyr", kZephyr}, {"gemma", kGemma},    {"phi", kPhi}};
  return kTemplates;
}

}  // namespace tessera
