// SPDX-License-Identifier: MIT
#include "lib/tools/generate/options.h"

#include <cmath>

#include "lib/data/jinja/date.h"
#include "tessera/core/error.h"

namespace tessera::programs {

void add_generate_flags(FlagSet& flags, GenerateOptions& o) {
  flags.section("Model");
  flags.add("model", &o.layout.model.directory,
            "Hugging Face directory: config.json, safetensors, tokenizer.json");
  flags.add("checkpoint", &o.checkpoint,
            "instead of --model: a run's output directory, whose newest checkpoint is taken, or a "
            "checkpoint; of an exported program, --model names the program's directory");
  flags.add("adapter", &o.adapter,
            "directory of adapters for --model, as PEFT or a run with --lora_r writes it");
  flags.add("tokenizer", &o.layout.model.tokenizer,
            "directory with tokenizer.json; --model's unless given");
  flags.add("program_tensor_rules", &o.layout.model.program_tensor_rules,
            "JSON file that says how --tensor_parallel cuts layers of an exported program");
  flags.section("Prompts and answers");
  flags.add("prompt", &o.prompt, "one prompt, as text; with --chat one question");
  flags.add("prompts", &o.prompts, "file to read; - is standard input (of the first rank)");
  flags.add("format", &o.format,
            "text: one prompt a line; jsonl: objects with \"prompt\" or \"input_ids\"; auto: jsonl "
            "where the first line begins with {",
            {"auto", "text", "jsonl"});
  flags.add("output", &o.output, "file to write, JSON lines; - is standard output");
  flags.add("batch_size", &o.batch_size, "rows that a rank works on together");
  flags.section("Chat");
  flags.add("chat", &o.chat,
            "answer as an assistant: lines of standard input, one conversation, or the chats of "
            "--prompts FILE, as tessera-finetune-chat reads them");
  flags.add("chat_template", &o.chat_template,
            "how chats are written: a name or a file; the tokenizer's own unless given");
  flags.add("template_date", &o.template_date,
            "YYYY-MM-DD, the date that a chat template writes; unless given today's in UTC");
  flags.add("system", &o.system, "what the system says first");
  flags.section("Generation");
  flags.add("max_new_tokens", &o.max_new_tokens,
            "tokens of an answer at most; with --chat 512 unless given");
  flags.add("eos_token_id", &o.eos_token_id,
            "end tokens with commas between them; the model's unless given");
  flags.add("ignore_eos", &o.ignore_eos, "no token ends an answer");
  flags.add("do_sample", &o.do_sample, "draw tokens instead of taking the best");
  flags.add("temperature", &o.temperature, "do_sample: scores are divided by it");
  flags.add("top_k", &o.top_k, "do_sample: draw from that many best tokens; 0: from all");
  flags.add("top_p", &o.top_p,
            "do_sample: draw from the fewest tokens that have this probability together");
  flags.add("seed", &o.layout.training.seed, "do_sample: what is drawn follows from it");
  flags.add("use_cache", &o.use_cache, "keep keys and values; false: run whole rows every token");
  flags.section("Perplexity");
  flags.add("perplexity", &o.perplexity, "instead of --prompts: a text file to be predicted");
  flags.add("max_length", &o.max_length, "tokens of a window; 0: the model's positions, or 1024");
  flags.add("stride", &o.stride, "from one window to the next; 0: half a window");
  add_strategy_flags(flags, o.layout);
  flags.section("Run");
  flags.add("ranks", &o.layout.run.ranks,
            "in-process ranks (CPU); processes are started by mpirun");
  flags.add("backend", &o.layout.run.backend, "transport between ranks",
            {"auto", "local", "mpi", "tcp", "nccl"});
}

void validate_options(const GenerateOptions& o) {
  const auto require = [](bool condition, const auto&... parts) {
    check(condition, ErrorCode::kInvalidArgument, parts...);
  };
  require(!o.layout.model.directory.empty() || !o.checkpoint.empty(),
          "give --model DIR, or --checkpoint DIR in its place");
  require(o.adapter.empty() || o.checkpoint.empty(),
          "--adapter is of --model; a checkpoint has its own weights");
  require(o.adapter.empty() || !o.layout.model.directory.empty(),
          "--adapter needs --model DIR, its base");
  require(o.prompt.empty() || o.prompts == "-", "give --prompt TEXT or --prompts FILE, not both");
  require(o.prompt.empty() || o.perplexity.empty(),
          "--perplexity and --prompt are two kinds of work; give one of them");
  require(o.perplexity.empty() || o.prompts == "-",
          "--perplexity and --prompts are two kinds of work; give one of them");
  require(o.chat || (o.chat_template.empty() && o.template_date.empty() && o.system.empty()),
          "--chat_template, --template_date and --system are for --chat");
  if (!o.template_date.empty()) jinja::parse_date(o.template_date);
  require(!o.chat || o.perplexity.empty(),
          "--chat and --perplexity are two kinds of work; give one of them");
  require(!o.chat || o.prompts != "-" || o.output == "-",
          "--chat with standard input answers on standard output; leave out --output");
  require(!o.ignore_eos || o.eos_token_id.empty(), "--ignore_eos and --eos_token_id: give one");
  const std::pair<const char*, int64_t> positive[] = {{"batch_size", o.batch_size},
                                                      {"max_new_tokens", o.max_new_tokens}};
  validate_layout(o.layout);
  for (const auto& [name, value] : positive) {
    require(value >= 1 && value <= int64_t{1} << 31, "--", name, " is ", value,
            "; it must be at least 1 and not larger than 2^31");
  }
  const std::pair<const char*, int64_t> not_negative[] = {
      {"top_k", o.top_k}, {"max_length", o.max_length}, {"stride", o.stride}};
  for (const auto& [name, value] : not_negative) {
    require(value >= 0, "--", name, " is ", value, "; it must not be negative");
  }
  require(o.temperature > 0 && std::isfinite(o.temperature), "--temperature is ", o.temperature,
          "; it must be positive");
  require(o.top_p > 0 && o.top_p <= 1, "--top_p is ", o.top_p,
          "; it must be more than 0 and at most 1");
  require(o.max_length != 1, "--max_length is 1; a window has at least two tokens");
}

}  // namespace tessera::programs
