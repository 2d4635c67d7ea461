#include "lib/settings/table.h"

namespace tessera::settings::rows {
namespace {

using O = TrainOptions;
using enum Changes;
using enum Program;

metrics::Value padding_free_record(const O& o) { return o.padding_free == "true"; }
std::string padding_free_tag(const O& o) { return o.padding_free == "true" ? "pf" : ""; }

}  // namespace

std::vector<Setting> model() {
  // clang-format off
  return {
      {"model", &O::model, kNumbers,
       "Hugging Face directory: config.json, safetensors, tokenizer.json"},
      {"model_config", &O::model_config, kNumbers,
       "instead of --model: random weights by NAME or config.json"},
      {"tokenizer", &O::tokenizer, kNumbers,
       "directory with tokenizer.json; --model's unless given"},
  };
  // clang-format on
}

std::vector<Setting> data() {
  // clang-format off
  return {
      {"train_file", &O::train_file, kNumbers, "SQuAD v1.1 or v2 JSON", {.programs = {kSquad}}},
      {"train_file", &O::train_file, kNumbers,
       ".txt (one document) or .jsonl (one a line); joined with end tokens, cut into blocks of "
       "--max_seq_length",
       {.programs = {kText}}},
      {"train_file", &O::train_file, kNumbers, "CSV, TSV or JSONL",
       {.programs = {kClassification}}},
      {"validation_file", &O::validation_file, kNumbers, "the same, evaluated after every epoch"},
      {"supervise", &O::supervise, kNumbers, "which tokens the loss counts",
       {.choices = {"answer", "all"}, .tag = "", .recorded = true, .programs = {kSquad}}},
      {"label_padding", &O::label_padding, kNumbers,
       "with --supervise all: does the loss count padding",
       {.choices = {"ignore", "include"}, .programs = {kSquad}}},
      {"squad_v2", &O::squad_v2, kNumbers, "train questions without an answer on an empty one",
       {.programs = {kSquad}}},
      {"doc_stride", &O::doc_stride, kNumbers,
       "tokens that two windows of a context too long for one row share",
       {.least = 0, .programs = {kSquad}}},
      {"text_column", &O::text_column, kNumbers, "key of the text in JSON lines; text unless given",
       {.programs = {kText}}},
      {"text_column", &O::text_column, kNumbers, "name or number of the text column",
       {.programs = {kClassification}}},
      {"label_column", &O::label_column, kNumbers, "name or number of the label column",
       {.programs = {kClassification}}},
      {"num_labels", &O::num_labels, kNumbers, "number of classes; 0: as many as the data has",
       {.least = 0, .programs = {kClassification}}},
      {"train_ids", &O::train_ids, kNumbers,
       "instead of --train_file: JSON lines of input_ids, labels"},
      {"random_rows", &O::random_rows, kNumbers,
       "instead of data, to try speed and memory: so many rows of random ids",
       {.least = 0}},
      {"random_row_length", &O::random_row_length, kNumbers,
       "their mean length, which then varies as that of questions does; 0: --max_seq_length each",
       {.least = 0}},
      {"validation_ids", &O::validation_ids, kNumbers, "instead of --validation_file"},
      {"train_slice", &O::train_slice, kNumbers, "BEGIN:END, the training rows to use"},
      {"validation_slice", &O::validation_slice, kNumbers, "BEGIN:END, the validation rows to use"},
      {"cache_dir", &O::cache_dir, kOutput,
       "tokenised files are kept here; none: nowhere; unless given, large ones in "
       "~/.cache/tessera"},
      {"strict_data", &O::strict_data, kNumbers, "stop at the first row that cannot be used"},
      {"shuffle", &O::shuffle, kNumbers, "a new order every epoch; false keeps the file's",
       {.own = true}},
      {"max_seq_length", &O::max_seq_length, kNumbers, "most tokens of a row",
       {.least = 1, .most = kMuch, .recorded = true}},
      {"padding_side", &O::padding_side, kNumbers, "where short rows are filled",
       {.choices = {"right", "left"}}},
      {"packing", &O::packing, kCost,
       "lay a step's rows end to end in sequences of --max_seq_length; changes no number",
       {.tag = "pack"}},
      {"padding_free", &O::padding_free, kCost,
       "lay a micro-batch's rows end to end instead of padding them; changes no number; auto: on "
       "GPUs",
       {.choices = {"auto", "true", "false"}, .tag_of = padding_free_tag,
        .record = padding_free_record}},
      {"group_by_length", &O::group_by_length, kNumbers, "batches of rows of about one length",
       {.tag = "len", .recorded = true}},
      {"pad_to_max_length", &O::pad_to_max_length, kCost,
       "pad to --max_seq_length instead of the longest row of a micro-batch",
       {.tag = "max"}},
      {"pad_to_multiple_of", &O::pad_to_multiple_of, kCost, "lengths are rounded up to it",
       {.least = 1, .most = kMuch, .tag = "mul"}},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
