// SPDX-License-Identifier: MIT
#include "lib/tools/tokenize/tokenize.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <istream>
#include <ostream>
#include <sstream>

#include "lib/core/file.h"
#include "lib/settings/flags.h"
#include "lib/settings/tool.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/classification.h"
#include "tessera/data/squad.h"
#include "tessera/data/tokenizer.h"

namespace tessera::programs {
namespace {

struct Options {
  std::string tokenizer, input = "-", output = "-", format = "auto";
  bool decode = false, add_special_tokens = true, skip_special_tokens = false, squad_v2 = false;
  int64_t max_seq_length = 512, doc_stride = 128;
  bool strict_data = false;
  std::string supervise = "answer", text_column, label_column;
};

void add_flags(FlagSet& flags, Options& o) {
  flags.add("tokenizer", &o.tokenizer, "directory with tokenizer.json, or that file (required)");
  flags.add("input", &o.input, "file to read; - is standard input");
  flags.add("output", &o.output, "file to write; - is standard output");
  flags.add(
      "format", &o.format,
      "strings: one JSON string a line; text: one text a line; squad; classification: CSV, TSV "
      "or JSON lines; auto: by the file's extension; from standard input strings if the first "
      "line is one, else text",
      {"auto", "strings", "text", "squad", "classification"});
  flags.add("decode", &o.decode, "read token ids (JSON lines) and write one JSON string a line");
  flags.section("Texts");
  flags.add("add_special_tokens", &o.add_special_tokens, "apply the tokenizer's own template");
  flags.add("skip_special_tokens", &o.skip_special_tokens, "leave special tokens out of --decode");
  flags.section("SQuAD and classification");
  flags.add("max_seq_length", &o.max_seq_length, "most tokens of a row");
  flags.add("strict_data", &o.strict_data, "stop at the first row that cannot be used");
  flags.add("doc_stride", &o.doc_stride,
            "SQuAD: tokens that two windows of a context too long for one row share");
  flags.add("supervise", &o.supervise, "SQuAD: which tokens get labels", {"answer", "all"});
  flags.add("squad_v2", &o.squad_v2, "SQuAD: keep questions without an answer");
  flags.add("text_column", &o.text_column, "names or numbers from 1, with commas between them");
  flags.add("label_column", &o.label_column, "name or number from 1");
}

void validate(const Options& o) {
  check(!o.tokenizer.empty(), ErrorCode::kInvalidArgument,
        "--tokenizer is required: a directory with tokenizer.json");
  check(o.max_seq_length >= 2, ErrorCode::kInvalidArgument, "--max_seq_length is ",
        o.max_seq_length, ", expected at least 2");
  check(o.doc_stride >= 0, ErrorCode::kInvalidArgument, "--doc_stride is ", o.doc_stride,
        "; it must not be negative");
}

std::string format_of(const Options& o) {
  if (o.format != "auto") return o.format;
  if (o.input == "-") return "strings";
  const std::string extension = std::filesystem::path(o.input).extension().string();
  if (extension == ".txt") return "text";
  if (extension == ".json") return "squad";
  if (extension == ".csv" || extension == ".tsv" || extension == ".jsonl") return "classification";
  fail(ErrorCode::kInvalidArgument, o.input,
       ": the extension does not tell what this is; add --format");
}

void write_ids(std::ostream& out, const std::vector<int32_t>& ids) {
  out << JsonWriter().begin_object().field("input_ids", ids).end_object().text() << '\n';
}

void write_rows(std::ostream& out, const Dataset& dataset) {
  for (const Example& row : dataset.examples) {
    JsonWriter line;
    line.begin_object().field("input_ids", row.input_ids).key("labels");
    if (dataset.task == Task::kCausal) {
      line.value(row.labels);
    } else {
      line.value(row.labels[0]);
    }
    out << line.end_object().text() << '\n';
  }
}

// Lines of an input with look-ahead.
class InputLines {
 public:
  InputLines(std::string name, std::istream& in) : name_(std::move(name)), in_(in) {}

  // True if the first non-blank line is a JSON string.
  bool begin_with_string() {
    for (std::string line; std::getline(in_, line);) {
      begun_.push_back(line);
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      try {
        return Json::parse(line, {}, name_).is_string();
      } catch (const Error&) {
        return false;
      }
    }
    return true;
  }

  // Calls `each` with every line and "name:number".
  void for_each(const std::function<void(const std::string&, const std::string&)>& each) {
    int64_t number = 0;
    const auto take = [&](std::string line) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      each(line, concat(name_, ":", ++number));
    };
    for (const std::string& line : begun_) take(line);
    for (std::string line; std::getline(in_, line);) take(line);
    check(!in_.bad(), ErrorCode::kDataLoss, name_, ": cannot be read");
  }

 private:
  const std::string name_;
  std::istream& in_;
  std::vector<std::string> begun_;
};

std::vector<int32_t> read_ids(const Json& line, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (const Json& id : (line.is_object() ? line.at("input_ids") : line).items()) {
    ids.push_back(static_cast<int32_t>(id.as_int64(0, vocabulary - 1)));
  }
  return ids;
}

void convert_lines(const Options& o, const Tokenizer& tokenizer, std::istream& standard_input,
                   std::ostream& out) {
  std::istringstream file(o.input == "-" ? "" : read_file(o.input));
  const bool piped = o.input == "-";
  InputLines lines(piped ? "standard input" : o.input, piped ? standard_input : file);
  const bool looks = piped && o.format == "auto" && !o.decode;
  const bool json = o.decode || (looks ? lines.begin_with_string() : format_of(o) == "strings");
  lines.for_each([&](const std::string& line, const std::string& where) {
    if (!json) {
      check_utf8(line, where);
      return write_ids(out, tokenizer.encode(line, o.add_special_tokens));
    }
    if (line.find_first_not_of(" \t") == line.npos) return;
    const Json value = Json::parse(line, {}, where);
    if (!o.decode) {
      return write_ids(out, tokenizer.encode(value.as_string(), o.add_special_tokens));
    }
    const std::string text =
        tokenizer.decode(read_ids(value, tokenizer.size()), o.skip_special_tokens);
    out << JsonWriter().value(text).text() << '\n';
  });
}

void convert(const Options& o, const Tokenizer& tokenizer, std::istream& in, std::ostream& out,
             std::ostream& err) {
  const std::string format = o.decode ? "strings" : format_of(o);
  if (format == "strings" || format == "text") return convert_lines(o, tokenizer, in, out);
  check(o.input != "-", ErrorCode::kInvalidArgument, "--format ", format, " needs --input FILE");
  RowIssues issues(o.strict_data);
  if (format == "squad") {
    const SquadExamples examples = squad_examples(read_squad(o.input, &issues), tokenizer,
                                                  {.max_seq_length = o.max_seq_length,
                                                   .doc_stride = o.doc_stride,
                                                   .supervise_all = o.supervise == "all",
                                                   .keep_unanswerable = o.squad_v2},
                                                  &issues);
    issues.check_share(o.input);
    write_rows(out, examples.dataset);
    err << o.input << ": " << examples.dataset.size() << " rows, " << examples.windows
        << " of them windows of " << examples.cut_contexts << " contexts too long for one, "
        << examples.skipped_unanswerable << " questions without an answer skipped\n";
  } else {
    const LabelledTexts texts =
        read_labelled_texts(o.input, {.text = o.text_column, .label = o.label_column}, &issues);
    const LabelMap labels = LabelMap::from(texts);
    const Dataset rows =
        classification_examples(texts, labels, tokenizer, o.max_seq_length, &issues);
    issues.check_share(o.input);
    write_rows(out, rows);
    err << o.input << ": " << rows.size() << " rows, labels";
    for (size_t i = 0; i < labels.names().size(); ++i) err << " " << i << "=" << labels.names()[i];
    err << "\n";
  }
  if (issues.skipped() > 0) err << o.input << ": " << issues.text() << "\n";
}

// Renames the file when it is complete.
void convert_to_file(const Options& o, const Tokenizer& tokenizer, std::istream& in,
                     std::ostream& err) {
  const std::string unfinished = o.output + ".tessera.tmp";
  try {
    std::ofstream file(unfinished, std::ios::binary);
    check(file.is_open(), ErrorCode::kDataLoss, unfinished, ": cannot be created");
    convert(o, tokenizer, in, file, err);
    file.close();
    check(!file.fail(), ErrorCode::kDataLoss, unfinished, ": cannot be written; is the disk full?");
    std::filesystem::rename(unfinished, o.output);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw;
  }
}

int run(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out,
        std::ostream& err) {
  Options options;
  FlagSet flags("tessera-tokenize", "Turns text, SQuAD and classification files into token ids.");
  add_flags(flags, options);
  flags.parse(arguments);
  if (flags.help_requested() || flags.print_config_requested()) {
    out << (flags.help_requested() ? flags.help() : flags.config_json() + "\n");
    return 0;
  }
  validate(options);
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  if (options.output != "-") {
    convert_to_file(options, tokenizer, in, err);
  } else {
    convert(options, tokenizer, in, out, err);
  }
  return 0;
}

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out,
                 std::ostream& err) {
  return run_tool("tessera-tokenize", out, err, [&] { return run(arguments, in, out, err); });
}

}  // namespace tessera::programs
