// SPDX-License-Identifier: MIT
#include "lib/settings/table.h"

namespace tessera::settings::rows {
namespace {

using O = TrainOptions;
using M = ModelOptions;
using D = DataOptions;
using enum Changes;
using enum Program;

bool lies_end_to_end(const O& o) { return o.data.padding_free == PaddingFree::kTrue; }
metrics::Value padding_free_record(const O& o) { return lies_end_to_end(o); }
std::string padding_free_tag(const O& o) { return lies_end_to_end(o) ? "pf" : ""; }

}  // namespace

std::vector<Setting> model() {
  // clang-format off
  return {
      {"model", of<&M::directory>, kNumbers,
       "Hugging Face directory: config.json, safetensors, tokenizer.json",
       {.brief = "Hugging Face directory"}},
      {"model_config", of<&M::config>, kNumbers,
       "instead of --model: random weights by NAME or config.json",
       {.brief = "or a name: random weights"}},
      {"tokenizer", of<&M::tokenizer>, kNumbers,
       "directory with tokenizer.json; --model's unless given",
       {.brief = "directory; --model's unless given"}},
      {"resize_embeddings", of<&M::resize_embeddings>, kNumbers,
       "where the tokenizer has more ids than the model's embedding rows: add rows, drawn around "
       "the mean of the others"},
      {"program_operators", of<&M::program_operators>, kNumbers,
       "of an exported program: auto replaces what tessera has operators for, each with a proof at "
       "load; aten runs the operators as they were exported"},
      {"program_report", of<&M::program_report>, kOutput,
       "log what of an exported program was replaced by tessera's operators, what was not, and why"},
      {"program_tensor_rules", of<&M::program_tensor_rules>, kNumbers,
       "JSON file that says how --tensor_parallel cuts layers of an exported program: path, or its "
       "end, to columns, rows, vocabulary or whole"},
  };
  // clang-format on
}

std::vector<Setting> data() {
  // clang-format off
  return {
      {"train_file", of<&D::train_file>, kNumbers, "SQuAD v1.1 or v2 JSON",
       {.work = "", .brief = "SQuAD JSON"}, {.programs = {kSquad}}},
      {"train_file", of<&D::train_file>, kNumbers,
       ".txt (one document) or .jsonl (one a line); joined with end tokens, cut into blocks of "
       "--max_seq_length",
       {.work = "", .brief = ".txt or .jsonl"}, {.programs = {kText}}},
      {"train_file", of<&D::train_file>, kNumbers, "CSV, TSV or JSONL",
       {.work = "", .brief = "CSV, TSV or JSONL"}, {.programs = {kClassification}}},
      {"train_file", of<&D::train_file>, kNumbers,
       "JSON lines, or an array, of chats: messages; prompt and completion; instruction, input and "
       "output; instruction, context and response; question and answer; conversations",
       {.work = "", .brief = "chats as JSON lines"}, {.programs = {kChat}}},
      {"validation_file", of<&D::validation_file>, kNumbers,
       "the same, evaluated after every epoch",
       {.work = "evaluated on", .brief = "evaluated after every epoch"}},
      {"supervise", of<&D::supervise>, kNumbers, "which tokens the loss counts",
       {.tag = "", .work = "supervised"}, {.recorded = true, .programs = {kSquad}}},
      {"label_padding", of<&D::label_padding>, kNumbers,
       "with --supervise all: does the loss count padding",
       {.work = "labels of padding"}, {.programs = {kSquad}}},
      {"squad_v2", of<&D::squad_v2>, kNumbers, "train questions without an answer on an empty one",
       {}, {.programs = {kSquad}}},
      {"doc_stride", of<&D::doc_stride>, kNumbers,
       "tokens that two windows of a context too long for one row share",
       {.least = 0, .most = kMuch}, {.programs = {kSquad}}},
      {"chat_template", of<&D::chat_template>, kNumbers,
       "how chats are written: chatml, llama-2, llama-3, mistral, zephyr, gemma, phi, or a file; "
       "the tokenizer's own unless given",
       {}, {.programs = {kChat}}},
      {"template_date", of<&D::template_date>, kNumbers,
       "YYYY-MM-DD, the date that a chat template writes; unless given today's in UTC, or that of "
       "the checkpoint that the run goes on from",
       {}, {.programs = {kChat}}},
      {"train_on", of<&D::train_on>, kNumbers,
       "what the loss counts: everything, the assistant's turns, or the last one of each chat",
       {}, {.programs = {kChat}}},
      {"long_chats", of<&D::long_chats>, kNumbers,
       "of chats longer than --max_seq_length: drop the oldest turns, leave the chat out, or cut "
       "off its end",
       {}, {.programs = {kChat}}},
      {"show_rows", of<&D::show_rows>, kOutput,
       "print so many rows of --train_file with their trained tokens marked, and stop",
       {.least = 0, .most = kMuch}, {.programs = {kChat}}},
      {"text_column", of<&D::text_column>, kNumbers,
       "key of the text in JSON lines; text unless given",
       {}, {.programs = {kText}}},
      {"text_column", of<&D::text_column>, kNumbers, "name or number of the text column",
       {}, {.programs = {kClassification}}},
      {"label_column", of<&D::label_column>, kNumbers, "name or number of the label column",
       {}, {.programs = {kClassification}}},
      {"num_labels", of<&D::num_labels>, kNumbers, "number of classes; 0: as many as the data has",
       {.least = 0, .most = 0x1p24}, {.programs = {kClassification}}},
      {"train_ids", of<&D::train_ids>, kNumbers,
       "instead of --train_file: JSON lines of input_ids, labels",
       {.work = ""}},
      {"random_rows", of<&D::random_rows>, kNumbers,
       "instead of data, to try speed and memory: so many rows of random ids",
       {.least = 0, .most = kMuch}},
      {"random_row_length", of<&D::random_row_length>, kNumbers,
       "their mean length, which then varies as that of questions does; 0: --max_seq_length each",
       {.least = 0, .most = kMuch}},
      {"validation_ids", of<&D::validation_ids>, kNumbers, "instead of --validation_file"},
      {"train_slice", of<&D::train_slice>, kNumbers, "BEGIN:END, the training rows to use"},
      {"validation_slice", of<&D::validation_slice>, kNumbers,
       "BEGIN:END, the validation rows to use"},
      {"cache_dir", of<&D::cache_dir>, kOutput,
       "tokenised files are kept here; none: nowhere; unless given, large ones in "
       "~/.cache/tessera",
       {}, {.writes = true}},
      {"strict_data", of<&D::strict_data>, kNumbers, "stop at the first row that cannot be used"},
      {"shuffle", of<&D::shuffle>, kNumbers, "a new order every epoch; false keeps the file's",
       {.work = "shuffled"}, {.own = true}},
      {"max_seq_length", of<&D::max_seq_length>, kNumbers, "most tokens of a row",
       {.least = 1, .most = kMuch, .work = "sequence length", .brief = "most tokens of a row"},
       {.recorded = true}},
      {"padding_side", of<&D::padding_side>, kNumbers, "where short rows are filled"},
      {"packing", of<&D::packing>, kCost,
       "lay a step's rows end to end in sequences of --max_seq_length; changes no number",
       {.tag = "pack", .work = "packing"}},
      {"padding_free", of<&D::padding_free>, kCost,
       "lay a micro-batch's rows end to end instead of padding them; changes no number; auto: on "
       "GPUs",
       {.work = "rows without padding"}, {.tag_of = padding_free_tag,
        .record = padding_free_record}},
      {"group_by_length", of<&D::group_by_length>, kNumbers, "batches of rows of about one length",
       {.tag = "len", .work = "rows grouped by length"}, {.recorded = true}},
      {"pad_to_max_length", of<&D::pad_to_max_length>, kCost,
       "pad to --max_seq_length instead of the longest row of a micro-batch",
       {.tag = "max", .work = "padding to the full length"}},
      {"pad_to_multiple_of", of<&D::pad_to_multiple_of>, kCost, "lengths are rounded up to it",
       {.least = 1, .most = kMuch, .tag = "mul", .work = "padding to a multiple"}},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
