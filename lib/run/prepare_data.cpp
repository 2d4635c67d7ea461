// SPDX-License-Identifier: MIT
#include "lib/run/prepare_data.h"

#include "lib/core/hash.h"
#include "lib/core/joined.h"
#include "lib/data/random_rows.h"
#include "lib/data/supervised_share.h"
#include "lib/run/cached_rows.h"
#include "lib/run/chats.h"
#include "lib/run/progress_bar.h"
#include "lib/run/template_date.h"
#include "tessera/core/error.h"
#include "tessera/data/chat_examples.h"
#include "tessera/data/classification.h"
#include "tessera/data/squad.h"
#include "tessera/data/text_blocks.h"
#include "tessera/data/token_rows.h"

namespace tessera::programs {
namespace {

int64_t give(const Dataset& dataset, const RowTaker& take) {
  for (const Example& row : dataset.examples) take(row);
  return dataset.num_labels;
}

// A file while it is read, or found in the cache.
class DataFile {
 public:
  DataFile(Prepared& run, const std::string& path, const char* role)
      : run_(run), issues_(run.options.data.strict_data), bar_("reading " + path) {
    facts_.record.file = path;
    facts_.record.role = role;
  }

  const TrainOptions& options() const { return run_.options; }
  const std::string& path() const { return facts_.record.file; }
  RowIssues* issues() { return &issues_; }
  Progress progress() {
    return [this](double share) { bar_(share); };
  }
  metrics::DataRecord& record() { return facts_.record; }
  std::vector<std::string>& labels() { return facts_.labels; }  // classification only
  template <typename... Parts>
  void notice(const Parts&... parts) {
    facts_.notices.push_back(concat(path(), ": ", parts...));
  }

  // `read` passes every row to the taker and returns the number of classes. It is called only if
  // the rows are not cached.
  TokenTable rows(const RowReader& read) {
    TokenTable rows = cached_rows(run_, facts_, [&](const RowTaker& take) {
      int64_t count = 0;
      const int64_t classes = read([&](const Example& row) {
        ++count;
        take(row);
      });
      finish(count);
      return classes;
    });
    run_.notices.insert(run_.notices.end(), facts_.notices.begin(), facts_.notices.end());
    const bool training = facts_.record.role == "train";
    (training ? run_.dataset_sha256 : run_.validation_sha256) = facts_.sha256;
    (training ? run_.train_hash : run_.validation_hash) = facts_.rows_hash;
    run_.data_files.push_back(facts_.record);
    return rows;
  }

 private:
  void finish(int64_t examples) {
    metrics::DataRecord& record = facts_.record;
    issues_.check_share(path());
    check(examples > 0, ErrorCode::kDataLoss, path(), ": no row to ",
          record.role == "train" ? "train on" : "evaluate");
    if (issues_.skipped() > 0) notice(issues_.text(), " (--strict_data stops at the first)");
    record.rows = issues_.rows();
    record.examples = examples;
    record.skipped_rows = issues_.skipped();
    for (const RowIssues::Kind& kind : issues_.kinds()) {
      record.issues.push_back({kind.reason, kind.count, kind.places});
    }
  }

  Prepared& run_;
  RowIssues issues_;
  ProgressBar bar_;
  FileFacts facts_;
};

Dataset read_squad_file(const Prepared& run, DataFile& file) {
  const TrainOptions& o = run.options;
  const auto questions = read_squad(file.path(), file.issues());
  SquadExamples squad = squad_examples(questions, *run.tokenizer,
                                       {.max_seq_length = o.data.max_seq_length,
                                        .doc_stride = o.data.doc_stride,
                                        .supervise_all = o.data.supervise == Supervise::kAll,
                                        .keep_unanswerable = o.data.squad_v2,
                                        .progress = file.progress()},
                                       file.issues());
  if (squad.skipped_unanswerable > 0) {
    file.notice(squad.skipped_unanswerable,
                " questions without an answer skipped (--squad_v2 keeps them)");
  }
  if (squad.cut_contexts > 0) {
    file.notice(squad.cut_contexts, " contexts do not fit ", o.data.max_seq_length,
                " tokens: cut into ", squad.windows, " windows that hold the answer (",
                squad.windows_left_out, " without it left out)");
  }
  file.record().cut_contexts = squad.cut_contexts;
  file.record().windows = squad.windows;
  return std::move(squad.dataset);
}

TokenTable read_squad_file(Prepared& run, const std::string& path, const char* role) {
  DataFile file(run, path, role);
  return file.rows([&](const RowTaker& take) { return give(read_squad_file(run, file), take); });
}

Dataset read_ids(const Prepared& run, DataFile& file, int64_t num_labels) {
  TokenRows rows = read_token_rows(file.path(),
                                   {.task = run.task,
                                    .vocab_size = run.config().vocabulary,
                                    .num_labels = num_labels,
                                    .max_seq_length = run.options.data.max_seq_length,
                                    .progress = file.progress()},
                                   file.issues());
  if (rows.cut > 0) {
    file.notice(rows.cut, " rows cut to --max_seq_length ", run.options.data.max_seq_length);
  }
  if (!rows.ignored_keys.empty()) file.notice("keys without effect: ", joined(rows.ignored_keys));
  file.record().cut_rows = rows.cut;
  rows.dataset.num_labels = num_labels;
  return std::move(rows.dataset);
}

TokenTable read_ids(Prepared& run, const std::string& path, const char* role, int64_t num_labels) {
  DataFile file(run, path, role);
  return file.rows(
      [&](const RowTaker& take) { return give(read_ids(run, file, num_labels), take); });
}

TokenTable make_random_rows(Prepared& run, int64_t num_labels) {
  const TrainOptions& o = run.options;
  const RandomRowsOptions options{
      .task = run.task,
      .rows = o.data.random_rows,
      .vocab_size = run.config().vocabulary,
      .longest = o.data.max_seq_length,
      .mean_length = o.data.random_row_length,
      .answers_only = (run.program == Program::kSquad && o.data.supervise == Supervise::kAnswer) ||
                      (run.program == Program::kChat && o.data.train_on != TrainOn::kAll),
      .num_labels = num_labels};
  run.dataset_sha256 =
      sha256_hex(concat("random rows: ", options.rows, " of ", options.longest, ", mean ",
                        options.mean_length, ", ids ", options.vocab_size, ", answers only ",
                        options.answers_only, ", labels ", options.num_labels));
  run.train_hash = run.dataset_sha256;
  run.data_files.push_back(
      {.file = run.train_path, .role = "train", .rows = options.rows, .examples = options.rows});
  run.notices.emplace_back("rows of random ids: for speed and memory; their loss says nothing");
  return random_rows(options);
}

// Rows of --train_ids or --random_rows.
TokenTable tokenised_rows_of(Prepared& run, int64_t num_labels) {
  if (run.options.data.random_rows > 0) return make_random_rows(run, num_labels);
  return read_ids(run, run.options.data.train_ids, "train", num_labels);
}

TokenTable read_text_file(Prepared& run, const std::string& path, const char* role) {
  const TrainOptions& o = run.options;
  DataFile file(run, path, role);
  const std::string column = o.data.text_column.empty() ? "text" : o.data.text_column;
  return file.rows([&](const RowTaker& take) {
    const TextCounts counts =
        for_each_text_block(path, *run.tokenizer, {o.data.max_seq_length, column, file.progress()},
                            file.issues(), take);
    file.notice(counts.documents, " documents in ", counts.blocks, " blocks of ",
                o.data.max_seq_length, " tokens; ", counts.dropped_tokens,
                " tokens after them dropped");
    file.record().dropped_tokens = counts.dropped_tokens;
    if (path.ends_with(".jsonl")) file.record().text_columns = {column};
    return int64_t{0};
  });
}

// read: turns a file of the program's kind into rows.
void prepare_files(Prepared& run, TokenTable (*read)(Prepared&, const std::string&, const char*)) {
  const TrainOptions& o = run.options;
  run.train =
      o.data.train_file.empty() ? tokenised_rows_of(run, 0) : read(run, o.data.train_file, "train");
  if (!o.data.validation_file.empty())
    run.validation = read(run, o.data.validation_file, "validation");
}

void prepare_squad(Prepared& run) {
  const TrainOptions& o = run.options;
  prepare_files(run, read_squad_file);
  if (!o.data.train_file.empty()) {
    run.notices.push_back(
        o.data.supervise == Supervise::kAll
            ? concat("supervised: all tokens, padding ",
                     o.data.label_padding == LabelPadding::kInclude ? "included" : "ignored")
            : "supervised: the answer and the end token");
  }
}

TokenTable read_chat_file(Prepared& run, const std::string& path, const char* role) {
  const TrainOptions& o = run.options;
  DataFile file(run, path, role);
  return file.rows([&](const RowTaker& take) {
    const ChatCounts counts = for_each_chat_example(path, *run.tokenizer, *run.chat_template,
                                                    {.max_seq_length = o.data.max_seq_length,
                                                     .train_on = o.data.train_on,
                                                     .long_chats = o.data.long_chats,
                                                     .progress = file.progress()},
                                                    file.issues(), take);
    file.notice(counts.forms_text());
    file.record().text_columns = counts.form_names();
    for (const std::string& notice : how_written(counts, *run.chat_template)) file.notice(notice);
    const std::string longer =
        concat(" chats longer than --max_seq_length ", o.data.max_seq_length);
    if (counts.shortened > 0) {
      file.notice(counts.shortened, longer, ": ", counts.dropped_messages,
                  " messages dropped from their fronts");
    }
    if (counts.skipped_long > 0) file.notice(counts.skipped_long, longer, " left out");
    if (counts.cut > 0) {
      file.notice(counts.cut, longer, " cut at their ends, ", counts.cut_answers,
                  " of them within an answer");
    }
    if (counts.shortened + counts.cut > 0) file.record().cut_rows = counts.shortened + counts.cut;
    return int64_t{0};
  });
}

// Fixes one date for all rows, equal on every rank and after a resume.
void date_template(Prepared& run) {
  if (!run.chat_template->asks_for_date()) return;
  const std::string date = template_date(run.options);
  if (!date.empty()) run.chat_template = run.chat_template->dated(date);
  run.notices.push_back(concat("the chat template writes the date ", run.chat_template->date(),
                               "; --template_date YYYY-MM-DD sets another"));
}

void prepare_chat(Prepared& run) {
  const TrainOptions& o = run.options;
  const bool text = !o.data.train_file.empty() || !o.data.validation_file.empty();
  if (text) {
    run.chat_template = choose_chat_template(o.data.chat_template, run.tokenizer_directory);
    date_template(run);
  }
  prepare_files(run, read_chat_file);
  if (!text) return;
  constexpr const char* kTrained[] = {"all tokens", "the assistant's turns and their end tokens",
                                      "the last turn of each chat and its end token"};
  run.notices.push_back(concat("trained: ", kTrained[static_cast<size_t>(o.data.train_on)]));
  if (!o.data.train_file.empty()) run.notices.push_back(first_chat(run.train, *run.tokenizer));
}

LabelledTexts read_texts(DataFile& file) {
  const TrainOptions& o = file.options();
  LabelledTexts texts = read_labelled_texts(
      file.path(), {.text = o.data.text_column, .label = o.data.label_column}, file.issues());
  file.notice("text from ", joined(texts.text_columns), "; label from ", texts.label_column,
              texts.separator == ';'    ? "; fields are separated by semicolons"
              : texts.separator == '\t' ? "; fields are separated by tabs"
                                        : "");
  file.record().text_columns = texts.text_columns;
  file.record().label_columns = {texts.label_column};
  return texts;
}

// True if the model has class names; files may then also give class numbers.
bool model_has_labels(const Prepared& run) { return !run.config().labels.empty() && run.weights; }

// Fills missing class names as transformers does.
void name_labels(std::vector<std::string>& names, int64_t count) {
  while (static_cast<int64_t>(names.size()) < count)
    names.push_back(concat("LABEL_", names.size()));
}

LabelMap label_map(const Prepared& run, const LabelledTexts& texts) {
  const int64_t wanted = run.options.data.num_labels;
  if (model_has_labels(run)) return LabelMap::from_names(run.config().labels);
  LabelMap found = LabelMap::from(texts);
  check(wanted == 0 || found.size() <= wanted, ErrorCode::kDataLoss, texts.path, ": has ",
        found.size(), " different labels, --num_labels says ", wanted);
  if (found.size() >= wanted) return found;
  std::vector<std::string> names = found.names();
  name_labels(names, wanted);
  return LabelMap::from_names(names);
}

void prepare_labelled_texts(Prepared& run) {
  const TrainOptions& o = run.options;
  const bool numbers = model_has_labels(run);
  DataFile file(run, o.data.train_file, "train");
  run.train = file.rows([&](const RowTaker& take) {
    const LabelledTexts texts = read_texts(file);
    const LabelMap labels = label_map(run, texts);
    file.labels() = labels.names();
    return give(classification_examples(texts, labels, *run.tokenizer, o.data.max_seq_length,
                                        file.issues(), file.progress()),
                take);
  });
  run.language_model.config().labels = file.labels();
  if (o.data.validation_file.empty()) return;
  DataFile validation(run, o.data.validation_file, "validation");
  run.validation = validation.rows([&](const RowTaker& take) {
    const LabelMap labels = LabelMap::from_names(file.labels(), numbers);
    return give(
        classification_examples(read_texts(validation), labels, *run.tokenizer,
                                o.data.max_seq_length, validation.issues(), validation.progress()),
        take);
  });
}

void prepare_classification(Prepared& run) {
  const TrainOptions& o = run.options;
  if (!o.data.train_file.empty()) {
    prepare_labelled_texts(run);
  } else {
    const int64_t count = o.data.num_labels > 0 ? o.data.num_labels
                                                : static_cast<int64_t>(run.config().labels.size());
    check(count > 0, ErrorCode::kInvalidArgument,
          "--train_ids and --random_rows need --num_labels N for classification");
    check(o.data.validation_file.empty(), ErrorCode::kInvalidArgument,
          "--train_ids and --random_rows go with --validation_ids, not with --validation_file");
    run.train = tokenised_rows_of(run, count);
    std::vector<std::string>& names = run.language_model.config().labels;
    if (static_cast<int64_t>(names.size()) != count) {
      names.clear();
      name_labels(names, count);
    }
  }
  check(run.train.num_labels() >= 2, ErrorCode::kDataLoss, run.train_path,
        ": only one class; classification needs two at least");
}

TokenTable sliced(const TokenTable& rows, const std::string& slice) {
  const auto [begin, end] = Slice::parse(slice).within(rows.size());
  return rows.slice(begin, end);
}

// Rejects rows without targets, which have no loss.
void require_targets(const Prepared& run) {
  const DataOptions& data = run.options.data;
  if (data.label_padding == LabelPadding::kInclude) return;
  const auto require = [](const TokenTable& rows, const std::string& path) {
    check(rows.size() == 0 || has_target(rows), ErrorCode::kDataLoss, path,
          ": no row has a target; all labels are -100, or stand at a row's first token, which "
          "nothing predicts");
  };
  require(run.train, run.train_path);
  require(run.validation, data.validation_ids.empty() ? data.validation_file : data.validation_ids);
}

}  // namespace

void prepare_data(Prepared& run) {
  const TrainOptions& o = run.options;
  switch (run.program) {
    case Program::kSquad:
      prepare_squad(run);
      break;
    case Program::kText:
      prepare_files(run, read_text_file);
      break;
    case Program::kClassification:
      prepare_classification(run);
      break;
    case Program::kChat:
      prepare_chat(run);
      break;
    case Program::kOwn:  // reads its rows itself
      break;
  }
  if (!o.data.validation_ids.empty()) {
    run.validation = read_ids(run, o.data.validation_ids, "validation", run.train.num_labels());
  }
  if (!o.data.train_slice.empty()) run.train = sliced(run.train, o.data.train_slice);
  if (!o.data.validation_slice.empty()) {
    check(run.validation.size() > 0, ErrorCode::kInvalidArgument,
          "--validation_slice needs --validation_file or --validation_ids");
    run.validation = sliced(run.validation, o.data.validation_slice);
  }
  if (run.program != Program::kOwn) require_targets(run);
}

}  // namespace tessera::programs
