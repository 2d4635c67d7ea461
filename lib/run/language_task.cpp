// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lib/core/clock.h"
#include "lib/core/file.h"
#include "lib/core/folder_file.h"
#include "lib/core/hash.h"
#include "lib/run/adapters.h"
#include "lib/run/cached_rows.h"
#include "lib/run/chats.h"
#include "lib/run/class_predictions.h"
#include "lib/run/imported_model.h"
#include "lib/run/layout.h"
#include "lib/run/model_files.h"
#include "lib/run/prepare.h"
#include "lib/run/run_memory.h"
#include "lib/run/run_planner.h"
#include "lib/run/run_task.h"
#include "tessera/core/error.h"
#include "tessera/program/stored_names.h"

namespace tessera::programs {
namespace {

// Of an exported program; with adapters, of what is trained.
std::string names_of(const Prepared& run) {
  if (run.imported.empty()) return "";
  return run.adapter ? trained_names(run.model) : tessera::stored_names(run.imported);
}

class LanguageTask final : public RunTask {
 public:
  explicit LanguageTask(std::unique_ptr<const Prepared> run)
      : RunTask(run->options),
        run_(std::move(run)),
        planner_(language_planner(*run_)),
        names_(names_of(*run_)) {}

  Program program() const override { return run_->program; }
  std::vector<std::string> notices() const override { return run_->notices; }

  const ModelSpec& model() const override { return run_->model; }
  const TensorSource* weights() const override { return run_->weights.get(); }
  const AdapterConfig* adapter() const override {
    return run_->adapter ? &*run_->adapter : nullptr;
  }
  std::string base() const override { return run_->base; }
  ParallelConfig parallel_config() const override {
    return programs::parallel_config(*run_, options());
  }
  std::string model_config() const override {
    return run_->imported.empty() ? run_->language_model.to_json(run_->head())
                                  : read_file(file_in(run_->imported, "config.json"));
  }
  std::string stored_names() const override { return names_; }
  void add_files(HuggingFaceWriter& writer) const override;

  int64_t training_rows() const override { return run_->train.size(); }
  int64_t validation_rows() const override { return run_->validation.size(); }
  std::unique_ptr<StepSource> steps(const Communicator& data, Strategy::Pass pass) const override {
    const bool training = pass == Strategy::Pass::kTraining;
    return loaded_steps(training ? run_->train : run_->validation,
                        run_->loader_options(data, training), data.device());
  }
  std::string data_hash() const override { return run_->dataset_sha256; }
  int64_t counted_experts() const override {
    const DecoderConfig& config = run_->config();
    return run_->imported.empty() && config.watches_routers() ? config.experts : 0;
  }
  DataIdentity inputs() const override;
  DataIdentity data_identity(int64_t global_batch_size) const override;
  DataIdentity evaluation_identity() const override {
    return {{kValidationRows, concat(run_->validation_hash, options().data.validation_slice)},
            {kTokenizer, tokenizer()}};
  }
  std::string template_date() const override {
    const auto& chosen = run_->chat_template;
    return chosen && chosen->asks_for_date() ? chosen->date() : "";
  }
  void describe(metrics::RunStartRecord& record, const Communicator& data) const override;
  std::vector<metrics::DataRecord> data_files() const override { return run_->data_files; }

  const RunPlanner* planner() const override { return planner_.get(); }

  Predictions score(metrics::EvalRecord& record, const EvalReport& report, Strategy& strategy,
                    const DeviceMesh& mesh, RunMemory& memory) const override;

 private:
  std::string tokenizer() const { return run_->tokenizer ? tokenizer_hash(*run_->tokenizer) : ""; }
  std::string chat_template() const {
    return run_->chat_template ? chat_template_hash(*run_->chat_template) : "";
  }
  Predictions answer(metrics::EvalRecord& record, Strategy& strategy, const DeviceMesh& mesh,
                     RunMemory& memory) const;
  Predictions talk(metrics::EvalRecord& record, Strategy& strategy, const DeviceMesh& mesh,
                   RunMemory& memory) const;
  Predictions classify(metrics::EvalRecord& record, Strategy& strategy,
                       const DeviceMesh& mesh) const;

  const std::unique_ptr<const Prepared> run_;
  const std::unique_ptr<const RunPlanner> planner_;
  const std::string names_;
};

void LanguageTask::add_files(HuggingFaceWriter& writer) const {
  const TrainOptions& o = options();
  if (adapter() != nullptr) {
    // The base has them.
  } else if (!run_->imported.empty()) {
    add_program_files(writer, run_->imported);
  } else {
    writer.add_text("config.json",
                    run_->language_model.to_json(run_->head(), o.parallel.precision.parameter));
  }
  // A template from --chat_template replaces the tokenizer's own, which transformers reads later.
  const bool own_template = o.data.chat_template.empty() || !run_->chat_template;
  add_tokenizer_files(writer, o.model.tokenizer.empty() ? o.model.directory : o.model.tokenizer,
                      own_template);
  if (!own_template) {
    writer.add_text("chat_template.jinja", run_->chat_template->sources().front().second);
  }
  if (adapter() != nullptr) return;
  std::vector<int64_t> ends;
  if (run_->chat_template) {
    ends = generation_end_tokens(o.model.directory);
    if (ends.empty() && run_->config().eos_token) ends.push_back(*run_->config().eos_token);
    const auto turn = end_of_turn(*run_->chat_template, *run_->tokenizer).token;
    if (turn && std::ranges::find(ends, *turn) == ends.end()) ends.push_back(*turn);
  }
  add_generation_file(writer, o.model.directory, ends);
}

DataIdentity LanguageTask::inputs() const {
  const std::string& rules = options().model.program_tensor_rules;
  return {
      {kTokenizer, tokenizer()},
      {kChatTemplate, chat_template()},
      {"the model's config.json", model_config()},
      {"the model's weights (XXH3)", run_->weights_hash},
      {"the exported program (XXH3)", programs_hash(run_->imported)},
      {"the rules of --program_tensor_rules (XXH3)", rules.empty() ? "" : hash_file(rules).hex()},
      {"the adapters (XXH3)", saved_adapters_hash(options().lora.adapter)},
      {kTemplateDate, template_date()},
      {kTrainingData, run_->dataset_sha256},
      {kTrainingRows, run_->train_hash},
      {"the validation data (SHA-256)", run_->validation_sha256},
      {kValidationRows, run_->validation_hash}};
}

DataIdentity LanguageTask::data_identity(int64_t global_batch_size) const {
  const TrainOptions& o = options();
  const std::string grouped =
      o.data.group_by_length ? concat(", by length in batches of ", global_batch_size) : "";
  DataIdentity identity{{kTrainingData, run_->dataset_sha256},
                        {"--train_slice", o.data.train_slice},
                        {"rows", std::to_string(run_->train.size())},
                        {"how rows are made", data_recipe(o)},
                        {"--shuffle", (o.data.shuffle ? "true" : "false") + grouped},
                        {"--seed", std::to_string(o.training.seed)}};
  if (run_->chat_template) identity.emplace_back(kChatTemplate, chat_template());
  if (!template_date().empty()) identity.emplace_back(kTemplateDate, template_date());
  identity.emplace_back(kTrainingRows, run_->train_hash);
  return identity;
}

void LanguageTask::describe(metrics::RunStartRecord& record, const Communicator& data) const {
  const DataLoaderOptions loader = run_->loader_options(data, /*training=*/true);
  TrainOptions settled = options();
  settled.data.packing = loader.packing;
  settled.data.padding_free = loader.padding_free ? PaddingFree::kTrue : PaddingFree::kFalse;
  record.settings = settings::record(settled, program());
  record.exp = settings::run_name(settled, record.world_size, !data.device().is_cpu());
  record.dataset = run_->train_path;
  record.dataset_sha256 = run_->dataset_sha256;
}

RunTask::Predictions LanguageTask::score(metrics::EvalRecord& record, const EvalReport& report,
                                         Strategy& strategy, const DeviceMesh& mesh,
                                         RunMemory& memory) const {
  const bool classifies = run_->task == Task::kClassification;
  if (classifies && !report.counters.empty() && report.target_count > 0) {
    record.eval_accuracy = report.counters[0] / report.target_count;
  }
  if (!classifies) record.eval_perplexity = std::exp(report.loss);
  if (run_->questions) return answer(record, strategy, mesh, memory);
  if (run_->chats) return talk(record, strategy, mesh, memory);
  if (classifies && options().output.predictions) return classify(record, strategy, mesh);
  return {};
}

RunTask::Predictions LanguageTask::answer(metrics::EvalRecord& record, Strategy& strategy,
                                          const DeviceMesh& mesh, RunMemory& memory) const {
  memory.begin(Activity::kGeneration);
  memory.next(
      generation_shape(*run_->questions, *run_->tokenizer, run_->config(), options(), mesh));
  Answers answers = answer_questions(*run_->questions, *run_->tokenizer, run_->config(), options(),
                                     strategy, mesh);
  memory.end();
  record.eval_exact_match = answers.scores.all.exact_match;
  record.eval_f1 = answers.scores.all.f1;
  return [answers = std::move(answers)](const std::string& to) { answers.write(to); };
}

RunTask::Predictions LanguageTask::talk(metrics::EvalRecord& record, Strategy& strategy,
                                        const DeviceMesh& mesh, RunMemory& memory) const {
  memory.begin(Activity::kGeneration);
  memory.next(generation_shape(*run_->chats, *run_->tokenizer, run_->config(), options(), mesh));
  ChatAnswers answers =
      answer_chats(*run_->chats, *run_->tokenizer, run_->config(), options(), strategy, mesh);
  memory.end();
  record.eval_exact_match = answers.exact_match;
  return [answers = std::move(answers)](const std::string& to) { answers.write(to); };
}

RunTask::Predictions LanguageTask::classify(metrics::EvalRecord& record, Strategy& strategy,
                                            const DeviceMesh& mesh) const {
  ClassPredictions predictions = predict_classes(
      run_->validation, run_->loader_options(mesh.axis(Axis::kData), /*training=*/false),
      run_->config().labels, strategy, mesh);
  record.eval_f1_macro = predictions.scores.f1_macro;
  record.eval_f1_weighted = predictions.scores.f1_weighted;
  return [predictions = std::move(predictions)](const std::string& to) { predictions.write(to); };
}

}  // namespace

std::unique_ptr<RunTask> language_task(Prepared prepared) {
  return std::make_unique<LanguageTask>(std::make_unique<const Prepared>(std::move(prepared)));
}

}  // namespace tessera::programs
