#include "tessera/testing/fuzz_case.h"

#include <array>
#include <charconv>
#include <optional>
#include <sstream>

#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

using Dtype = at::ScalarType;

template <typename Enum>
struct Names;
template <>
struct Names<Dtype> {
  static constexpr std::array<std::pair<const char*, Dtype>, 3> kList{
      {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}};
};
template <>
struct Names<Offload> {
  static constexpr std::array<std::pair<const char*, Offload>, 3> kList{
      {{"none", Offload::kNone},
       {"optimizer", Offload::kOptimizer},
       {"parameters", Offload::kOptimizerAndParameters}}};
};
template <>
struct Names<OffloadStep> {
  static constexpr std::array<std::pair<const char*, OffloadStep>, 3> kList{
      {{"auto", OffloadStep::kAuto},
       {"host", OffloadStep::kHost},
       {"device", OffloadStep::kDevice}}};
};

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "1" : "0"; }
template <typename Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}
template <typename Enum>
requires requires { Names<Enum>::kList; }
std::string text_of(Enum value) {
  for (const auto& [name, known] : Names<Enum>::kList) {
    if (known == value) return name;
  }
  return "?";
}
std::string text_of(const std::optional<Dtype>& value) { return value ? text_of(*value) : "same"; }
std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (double value : values) text += (text.empty() ? "" : ",") + text_of(value);
  return text;
}

[[noreturn]] void refuse(const std::string& key, const std::string& text) {
  fail(ErrorCode::kInvalidArgument, "fuzz case: ", key, "=", text, " has no meaning");
}

void parse(const std::string&, const std::string& text, std::string& value) { value = text; }
template <typename Number>
requires std::is_arithmetic_v<Number>
void parse(const std::string& key, const std::string& text, Number& value) {
  if constexpr (std::is_same_v<Number, bool>) {
    if (text != "0" && text != "1") refuse(key, text);
    value = text == "1";
  } else {
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) refuse(key, text);
  }
}
template <typename Enum>
requires requires { Names<Enum>::kList; }
void parse(const std::string& key, const std::string& text, Enum& value) {
  for (const auto& [name, known] : Names<Enum>::kList) {
    if (name == text) {
      value = known;
      return;
    }
  }
  refuse(key, text);
}
void parse(const std::string& key, const std::string& text, std::optional<Dtype>& value) {
  if (text == "same") {
    value.reset();
  } else {
    parse(key, text, value.emplace());
  }
}
void parse(const std::string& key, const std::string& text, std::vector<double>& values) {
  values.clear();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) parse(key, part, values.emplace_back());
}

// The only list of fields.
template <typename Case, typename Fn>
void for_each_field(Case& c, const Fn& fn) {
  auto& p = c.parallel;
  fn("model", c.model);
  fn("blocks", c.blocks);
  fn("vocabulary", c.vocabulary);
  fn("hidden", c.hidden);
  fn("layers", c.layers);
  fn("heads", c.heads);
  fn("key_heads", c.key_heads);
  fn("tie", c.tie);
  fn("frozen", c.frozen);
  fn("own_weights", c.own_weights);
  fn("whole_module", c.whole_module);
  fn("pipeline", c.mesh.pipeline);
  fn("data", c.mesh.data);
  fn("tensor", c.mesh.tensor);
  fn("strategy", p.strategy);
  fn("parameter", p.precision.parameter);
  fn("gradient", p.precision.gradient);
  fn("reduce", p.precision.reduce);
  fn("bucket_bytes", p.bucket_bytes);
  fn("overlap", p.overlap);
  fn("reduce_at_boundary", p.reduce_at_boundary);
  fn("persistence_threshold", p.persistence_threshold);
  fn("prefetch_blocks", p.prefetch_blocks);
  fn("unit_numel", p.unit_numel);
  fn("reshard_after_forward", p.reshard_after_forward);
  fn("shard_ranks", p.shard_ranks);
  fn("gradient_checkpointing", p.gradient_checkpointing);
  fn("offload", p.offload.what);
  fn("offload_step", p.offload.step);
  fn("pin_memory", p.offload.pin_memory);
  fn("offload_threads", p.offload.threads);
  fn("chunk_numel", p.offload.chunk_numel);
  fn("schedule", p.pipeline.schedule);
  fn("chunks", p.pipeline.chunks);
  fn("shared_vocabulary", p.pipeline.shared_vocabulary);
  fn("balance", p.pipeline.balance);
  fn("block_costs", p.pipeline.block_costs);
  fn("sequence_parallel", p.sequence_parallel);
  fn("steps", c.steps);
  fn("accumulation", c.accumulation);
  fn("rows", c.rows);
  fn("length", c.length);
  fn("ragged", c.ragged);
  fn("padded", c.padded);
  fn("untargeted", c.untargeted);
  fn("skip", c.skip);
  fn("evaluate", c.evaluate);
  fn("loss_scale", c.loss_scale);
  fn("max_norm", c.max_norm);
  fn("learning_rate", c.learning_rate);
  fn("weight_decay", c.weight_decay);
  fn("beta1", c.beta1);
  fn("beta2", c.beta2);
  fn("epsilon", c.epsilon);
  fn("seed", c.seed);
  fn("refuse", c.refuse);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fields_of(const FuzzCase& fuzz_case) {
  std::vector<std::pair<std::string, std::string>> fields;
  for_each_field(fuzz_case, [&](const char* key, const auto& value) {
    fields.emplace_back(key, text_of(value));
  });
  return fields;
}

std::string to_line(const FuzzCase& fuzz_case) {
  const auto defaults = fields_of({}), fields = fields_of(fuzz_case);
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i] == defaults[i]) continue;
    line += (line.empty() ? "" : " ") + fields[i].first + "=" + fields[i].second;
  }
  return line;
}

FuzzCase parse_case(const std::string& line) {
  FuzzCase fuzz_case;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    check(equals != std::string::npos, ErrorCode::kInvalidArgument, "fuzz case: \"", word,
          "\" is not key=value");
    const std::string key = word.substr(0, equals), text = word.substr(equals + 1);
    bool known = false;
    for_each_field(fuzz_case, [&](const char* name, auto& value) {
      if (key != name) return;
      parse(key, text, value);
      known = true;
    });
    check(known, ErrorCode::kInvalidArgument, "fuzz case: there is no field \"", key, "\"");
  }
  return fuzz_case;
}

}  // namespace tessera::testing
