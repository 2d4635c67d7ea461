// SPDX-License-Identifier: MIT
#include "lib/tools/generate/generate.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "lib/core/failure.h"
#include "lib/core/file.h"
#include "lib/core/folder_file.h"
#include "lib/core/hash.h"
#include "lib/run/adapters.h"
#include "lib/run/cached_rows.h"
#include "lib/run/imported_model.h"
#include "lib/run/layout.h"
#include "lib/run/model_files.h"
#include "lib/run/output.h"
#include "lib/run/prepare.h"
#include "lib/run/program.h"
#include "lib/run/run_state.h"
#include "lib/settings/layout.h"
#include "lib/settings/lists.h"
#include "lib/tools/generate/chat.h"
#include "lib/tools/generate/prompts.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/core/log.h"
#include "tessera/generation/generate.h"
#include "tessera/generation/perplexity.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"
#include "tessera/program/from_program.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChatTokens = 512;  // default --max_new_tokens with --chat
// Default window of --perplexity for models without a length limit.
constexpr int64_t kWindow = 1024;

// One rank's part of the work.
class GenerateRun {
 public:
  GenerateRun(const GenerateOptions& options, Communicator& world, ControlChannel& control)
      : options_(options),
        world_(world),
        control_(control),
        mesh_(world, mesh_extents(options.layout, world.size())),
        strategy_(make_strategy(parallel_config(options.layout), mesh_)) {}

  void execute() {
    if (options_.chat && options_.prompts == "-") return converse();
    if (!options_.prompt.empty()) return answer(one_prompt());
    const bool answers = options_.perplexity.empty();
    const std::string& input = answers ? options_.prompts : options_.perplexity;
    const std::string content = read_on_first_rank(
        input, control_, answers ? "; --prompt TEXT takes a text instead of a file" : "");
    if (!options_.chat) open_model();
    const std::string origin = input == "-" ? "standard input" : input;
    std::string lines;
    if (options_.chat) {
      lines = answer_file(content, origin);
    } else if (answers) {
      return answer(parse_prompts(content, origin, options_.format, tokenizer(), limits()));
    } else {
      lines = perplexity_of(content, origin) + "\n";
    }
    if (world_.rank() == 0) write(lines);
  }

 private:
  PromptLimits limits() const {
    return {.vocabulary = config().vocabulary, .max_positions = config().max_positions};
  }

  Prompts one_prompt() {
    open_model();
    Prompts prompts;
    add_text(options_.prompt, "--prompt", tokenizer(), limits(), prompts);
    return prompts;
  }

  void answer(const Prompts& prompts) {
    const GenerationOptions generation = generation_options();
    attach();
    const auto rows = generate(*strategy_, mesh_, prompts.ids, generation);
    std::string lines;
    for (size_t i = 0; i < rows.size(); ++i) lines += line_of(i, prompts, rows[i]) + "\n";
    if (world_.rank() == 0) write(lines);
  }

  const DecoderConfig& config() const { return language_model_.config(); }
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  void open_model() {
    const std::string& model = options_.layout.model.directory;
    if (!options_.checkpoint.empty()) {
      open_run();
    } else {
      check_model_directory(model);
      imported_ = has_program(model);
      language_model_ =
          imported_ ? LanguageModel(described_by(model)) : LanguageModel::from_directory(model);
      weights_ = std::make_unique<HuggingFaceDirectory>(model);
    }
    if (!imported_) language_model_.validate();
    const std::string& rules = options_.layout.model.program_tensor_rules;
    check(rules.empty() || imported_, ErrorCode::kInvalidArgument,
          "--program_tensor_rules: ", options_.checkpoint, model,
          " holds no exported program; leave the flag out");
    check(config().labels.empty() || imported_, ErrorCode::kInvalidArgument, options_.checkpoint,
          model, ": a classifier writes no text; give a causal model");
    open_tokenizer();
    agree("the model's config.json", imported_ ? read_file(file_in(model, "config.json"))
                                               : language_model_.to_json(ModelHead::kCausal));
    agree("the model's weights (XXH3)", weights_ ? weights_->fingerprint() : "");
    agree("the exported program (XXH3)", imported_ ? programs_hash(model) : "");
    agree("the rules of --program_tensor_rules (XXH3)",
          rules.empty() ? "" : hash_file(rules).hex());
    agree("the adapters (XXH3)", saved_adapters_hash(options_.adapter));
    agree(kTokenizer, tokenizer_ ? tokenizer_hash(*tokenizer_) : "");
  }

  // Called before the first step, since ranks may read different files.
  void agree(const char* what, const std::string& text) {
    require_same_on_all_ranks(control_, what, text);
  }

  void open_run() {
    const std::string &given = options_.checkpoint, &program = options_.layout.model.directory;
    check(program.empty() || has_program(program), ErrorCode::kInvalidArgument,
          "give --model DIR, or --checkpoint DIR in its place; ", program,
          " holds no exported program, the only model that both name");
    std::string path = given;
    if (!fs::exists(fs::path(given) / "manifest.json")) path = find_checkpoint(world_, given).path;
    check(!path.empty(), ErrorCode::kDataLoss, "--checkpoint ", given,
          ": neither a checkpoint nor the output directory of a run that has one");
    checkpoint_ = open_checkpoint(world_, path);
    const std::string origin = path + "/manifest.json";
    const auto model = Json::parse(checkpoint_->run(), {}, origin + ": run").find("model");
    check(!Json::parse(checkpoint_->run(), {}, origin + ": run").contains("adapter"),
          ErrorCode::kInvalidArgument, path,
          " holds adapters alone; give --model DIR, the base, and --adapter OUTPUT_DIR/final");
    check(model && model->contains("config"), ErrorCode::kDataLoss, origin,
          ": the run has kept no configuration of its model (\"model\": {\"config\": ...})");
    imported_ = model->contains("names");
    check(!imported_ || !program.empty(), ErrorCode::kInvalidArgument, "--checkpoint ", given,
          " is of an exported program, which checkpoints do not hold; give its directory, too: "
          "--model DIR");
    check(imported_ || program.empty(), ErrorCode::kInvalidArgument,
          "give --model DIR, or --checkpoint DIR in its place; ", path,
          " is of a built-in family, so that --model says nothing more");
    language_model_ = imported_ ? LanguageModel(described_by(program))
                                : LanguageModel::from_json(model->at("config"));
  }

  void open_tokenizer() {
    const std::string& named = options_.layout.model.tokenizer;
    const std::string& model = options_.layout.model.directory;
    if (named.empty() && !fs::exists(fs::path(model) / "tokenizer.json")) return;
    tokenizer_ = Tokenizer::load(named.empty() ? model : named);
    check_embedding_rows(*tokenizer_, config());
  }

  // Inference only: almost no gradient memory and no optimizer state.
  void attach() {
    const ModelOptions& named = options_.layout.model;
    ModelSpec model = imported_ ? make_imported(named.directory, ModelHead::kCausal, 0,
                                                {.tensor_rules = named.program_tensor_rules})
                                : language_model_.make_causal();
    if (!options_.adapter.empty()) add_saved_adapters(model, options_.adapter, "CAUSAL_LM");
    model = freeze(std::move(model), [](const std::string&, const std::string&) { return true; });
    strategy_->attach(model, {.device = world_.device(), .source = weights_.get()}, make_sgd({}));
    if (!checkpoint_) return;
    load_checkpoint(world_, *checkpoint_, strategy_->state());
    strategy_->state_restored();
  }

  // --eos_token_id, else generation_config.json, else the model's configuration, else the
  // tokenizer. A chat also ends at the model's end token and the template's end of turn.
  std::vector<int64_t> end_tokens() const {
    if (options_.ignore_eos) return {};
    std::vector<int64_t> tokens;
    for (const std::string& item : items_of(options_.eos_token_id)) {
      const auto wrong = item.find_first_not_of("0123456789");
      check(!item.empty() && item.size() < 12 && wrong == item.npos, ErrorCode::kInvalidArgument,
            "--eos_token_id ", options_.eos_token_id,
            ": expected numbers with commas between them");
      tokens.push_back(std::stoll(item));
    }
    const bool given = !tokens.empty();
    if (!given) tokens = generation_end_tokens(options_.layout.model.directory);
    if (chat_ && chat_->end.token) tokens.push_back(*chat_->end.token);
    if ((tokens.empty() || (chat_ && !given)) && config().eos_token) {
      tokens.push_back(*config().eos_token);
    }
    if (tokens.empty() && tokenizer_ && tokenizer_->eos_id()) tokens = {*tokenizer_->eos_id()};
    check(!tokens.empty(), ErrorCode::kInvalidArgument,
          "neither the model nor the tokenizer names an end token (eos_token_id); give "
          "--eos_token_id N, or --ignore_eos to write --max_new_tokens in every answer");
    return tokens;
  }

  GenerationOptions generation_options() {
    const std::vector<int64_t> ends = end_tokens();
    std::string text;
    for (const int64_t token : ends) text += concat(token, " ");
    agree("the end tokens", text);
    GenerationOptions generation{.max_new_tokens = options_.max_new_tokens,
                                 .end_tokens = ends,
                                 .without_end_token = options_.ignore_eos,
                                 .max_positions = config().max_positions,
                                 .vocabulary = config().vocabulary,
                                 .batch_size = options_.batch_size,
                                 .use_cache = options_.use_cache};
    if (options_.do_sample) {
      generation.sampling = SamplingOptions{.temperature = options_.temperature,
                                            .top_k = options_.top_k,
                                            .top_p = options_.top_p,
                                            .seed = options_.layout.training.seed};
    }
    return generation;
  }

  // Text after the prompt's own, which keeps a space between them.
  std::string text_of(const std::vector<int64_t>& prompt,
                      const std::vector<int64_t>& answer) const {
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    const std::string head = tokenizer_->decode(ids, /*skip_special_tokens=*/true);
    ids.insert(ids.end(), answer.begin(), answer.end());
    const std::string all = tokenizer_->decode(ids, /*skip_special_tokens=*/true);
    if (all.starts_with(head)) return all.substr(head.size());
    return tokenizer_->decode({ids.begin() + static_cast<ptrdiff_t>(prompt.size()), ids.end()},
                              /*skip_special_tokens=*/true);
  }

  std::string line_of(size_t index, const Prompts& prompts, const GeneratedRow& row) const {
    JsonWriter line;
    line.begin_object().field("index", index);
    if (!prompts.texts[index].empty()) line.field("prompt", prompts.texts[index]);
    const bool known = std::ranges::all_of(
        row.ids, [&](int64_t id) { return tokenizer_ && id < tokenizer_->size(); });
    if (known) line.field("text", text_of(prompts.ids[index], row.ids));
    line.field("ids", row.ids);
    line.field("finish_reason", row.finish == FinishReason::kEndToken ? "stop" : "length");
    return line.end_object().text();
  }

  void open_chat() {
    open_model();
    check(tokenizer_.has_value(), ErrorCode::kInvalidArgument,
          "--chat needs a tokenizer; give --tokenizer DIR");
    const std::string& named = options_.layout.model.tokenizer;
    const ChatTemplate undated = choose_chat_template(
        options_.chat_template, named.empty() ? options_.layout.model.directory : named);
    const std::string& date = options_.template_date;
    agree(kChatTemplate, chat_template_hash(undated));
    const ChatTemplate chosen =
        undated.dated(control_.exchange(date.empty() ? undated.date() : date).front());
    chat_.emplace(ChatSetting{chosen, end_of_turn(chosen, *tokenizer_), options_.system,
                              config().max_positions, options_.max_new_tokens});
    if (!chat_->end.token && !chat_->end.text.empty() && world_.rank() == 0) {
      log(LogLevel::kInfo, "the end of a turn, ", chat_->end.text,
          ", is several tokens of this tokenizer: answers are cut there, but written to another "
          "end token or to --max_new_tokens");
    }
  }

  std::string answer_file(const std::string& content, const std::string& origin) {
    open_chat();
    const GenerationOptions generation = generation_options();
    const ChatFile chats = parse_chats(content, origin, *chat_, *tokenizer_);
    attach();
    const auto rows = generate(*strategy_, mesh_, chats.prompts, generation);
    std::string lines;
    for (size_t i = 0; i < rows.size(); ++i) {
      lines += answered_line(i, chats, rows[i], *chat_, *tokenizer_) + "\n";
    }
    return lines;
  }

  void converse() {
    open_chat();
    const GenerationOptions generation = generation_options();
    attach();
    Conversation conversation(*chat_, *tokenizer_, control_);
    if (!options_.prompt.empty()) {
      const std::vector<std::vector<int64_t>> prompts{conversation.prompt_of(options_.prompt)};
      return conversation.say(generate(*strategy_, mesh_, prompts, generation).front());
    }
    while (const auto prompt = conversation.listen()) {
      const std::vector<std::vector<int64_t>> prompts{*prompt};
      conversation.say(generate(*strategy_, mesh_, prompts, generation).front());
    }
  }

  std::string perplexity_of(const std::string& content, const std::string& origin) {
    check(tokenizer_.has_value(), ErrorCode::kInvalidArgument,
          "--perplexity needs a tokenizer; give --tokenizer DIR");
    check_utf8(content, origin);
    const std::vector<int32_t> tokens = tokenizer_->encode(content);
    const std::vector<int64_t> ids(tokens.begin(), tokens.end());
    check(ids.size() >= 2, ErrorCode::kDataLoss, origin, ": ", ids.size(),
          " tokens; a perplexity needs at least two");
    const int64_t most = config().max_positions;
    check(most == 0 || options_.max_length <= most, ErrorCode::kInvalidArgument, "--max_length ",
          options_.max_length, ": the model has ", most, " positions");
    PerplexityOptions windows{.batch_size = options_.batch_size};
    windows.window = options_.max_length > 0 ? options_.max_length : most > 0 ? most : kWindow;
    windows.stride =
        options_.stride > 0 ? options_.stride : std::max<int64_t>(windows.window / 2, 1);
    check(windows.stride <= windows.window, ErrorCode::kInvalidArgument, "--stride ",
          windows.stride, " is longer than a window of ", windows.window,
          " tokens, so some would never be predicted");
    attach();
    const Perplexity result = perplexity(*strategy_, mesh_, ids, windows);
    return JsonWriter()
        .begin_object()
        .field("perplexity", result.value)
        .field("perplexity_per_token", result.per_token)
        .field("predicted_tokens", result.predicted_tokens)
        .field("windows", result.windows)
        .field("max_length", windows.window)
        .field("stride", windows.stride)
        .end_object()
        .text();
  }

  void write(const std::string& lines) const {
    if (options_.output != "-") return write_text_file(options_.output, lines);
    std::fwrite(lines.data(), 1, lines.size(), stdout);
    check(std::fflush(stdout) == 0, ErrorCode::kDataLoss, "standard output: cannot be written");
  }

  const GenerateOptions& options_;
  Communicator& world_;
  ControlChannel& control_;
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
  LanguageModel language_model_;
  bool imported_ = false;                          // the directory holds exported programs
  std::unique_ptr<HuggingFaceDirectory> weights_;  // null with a checkpoint
  std::optional<Checkpoint> checkpoint_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatSetting> chat_;  // with --chat
};

}  // namespace

int run_generate(int argc, char** argv) {
  exit_when_out_of_memory();
  FlagSet flags("tessera-generate", "Lets a causal language model continue prompts.");
  GenerateOptions options;
  std::exception_ptr problem;  // rethrown on the connected ranks, so that it is reported once
  try {
    add_generate_flags(flags, options);
    flags.parse({argv + 1, argv + argc});
    choose_strategy(flags, std::max<int64_t>(options.layout.run.ranks, detect_launch().world_size),
                    options.layout);
    if (flags.help_requested() || flags.print_config_requested()) {
      const std::string text = flags.help_requested() ? flags.help() : flags.config_json() + "\n";
      if (speaks_first()) std::fputs(text.c_str(), stdout);
      return 0;
    }
    if (options.chat && !flags.given("max_new_tokens")) options.max_new_tokens = kChatTokens;
    validate_options(options);
    check_ranks(options.layout);
    set_numerics(options.layout);
  } catch (...) {
    problem = std::current_exception();
    options.layout.run.ranks = 1;
    options.layout.run.backend = "auto";
  }
  return run_job(
      {.ranks = options.layout.run.ranks > 1 ? static_cast<int>(options.layout.run.ranks) : 0,
       .transport = options.layout.run.backend},
      [&](Communicator& world, const LaunchInfo&, ControlChannel& control) {
        if (problem) std::rethrow_exception(problem);
        require_same_on_all_ranks(control, "the list of flags", flags.values_text());
        GenerateRun(options, world, control).execute();
      });
}

}  // namespace tessera::programs
