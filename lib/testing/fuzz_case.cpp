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
using EnumNames = std::array<std::pair<const char*, Enum>, 3>;
template <typename Enum>
constexpr EnumNames<Enum> kNames = {};
template <>
constexpr EnumNames<Dtype> kNames<Dtype> = {
    {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}};
template <>
constexpr EnumNames<Offload> kNames<Offload> = {{{"none", Offload::kNone},
                                                 {"optimizer", Offload::kOptimizer},
                                                 {"parameters", Offload::kOptimizerAndParameters}}};
template <>
constexpr EnumNames<OffloadStep> kNames<OffloadStep> = {
    {{"auto", OffloadStep::kAuto}, {"host", OffloadStep::kHost}, {"device", OffloadStep::kDevice}}};

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "1" : "0"; }
template <typename Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}
template <typename Enum>
requires std::is_enum_v<Enum> std::string text_of(Enum value) {
  for (const auto& [name, known] : kNames<Enum>) {
    if (known == value) return name;
  }
  return "?";
}
std::string text_of(const std::optional<Dtype>& value) { return value ? text_of(*value) : "same"; }
std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (double value : values) {
    if (!text.empty()) text += ',';
    text += text_of(value);
  }
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
requires std::is_enum_v<Enum>
void parse(const std::string& key, const std::string& text, Enum& value) {
  for (const auto& [name, known] : kNames<Enum>) {
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

// The only lists of fields.
template <typename Mesh, typename Parallel, typename Fn>
void for_each_layout_field(const std::string& prefix, Mesh& mesh, Parallel& p, const Fn& fn) {
  fn(prefix + "pipeline", mesh.pipeline);
  fn(prefix + "data", mesh.data);
  fn(prefix + "tensor", mesh.tensor);
  fn(prefix + "strategy", p.strategy);
  fn(prefix + "bucket_bytes", p.bucket_bytes);
  fn(prefix + "overlap", p.overlap);
  fn(prefix + "reduce_at_boundary", p.reduce_at_boundary);
  fn(prefix + "persistence_threshold", p.persistence_threshold);
  fn(prefix + "prefetch_blocks", p.prefetch_blocks);
  fn(prefix + "unit_numel", p.unit_numel);
  fn(prefix + "reshard_after_forward", p.reshard_after_forward);
  fn(prefix + "shard_ranks", p.shard_ranks);
  fn(prefix + "gradient_checkpointing", p.gradient_checkpointing);
  fn(prefix + "keep_activations", p.keep_activations);
  fn(prefix + "offload", p.offload.what);
  fn(prefix + "offload_step", p.offload.step);
  fn(prefix + "pin_memory", p.offload.pin_memory);
  fn(prefix + "offload_threads", p.offload.threads);
  fn(prefix + "chunk_numel", p.offload.chunk_numel);
  fn(prefix + "schedule", p.pipeline.schedule);
  fn(prefix + "chunks", p.pipeline.chunks);
  fn(prefix + "shared_vocabulary", p.pipeline.shared_vocabulary);
  fn(prefix + "balance", p.pipeline.balance);
  fn(prefix + "block_costs", p.pipeline.block_costs);
  fn(prefix + "sequence_parallel", p.sequence_parallel);
}
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
  fn("hidden_dropout", c.hidden_dropout);
  fn("attention_dropout", c.attention_dropout);
  fn("fused", c.fused);
  fn("tie", c.tie);
  fn("frozen", c.frozen);
  fn("own_weights", c.own_weights);
  fn("whole_module", c.whole_module);
  for_each_layout_field("", c.mesh, p, fn);
  fn("parameter", p.precision.parameter);
  fn("gradient", p.precision.gradient);
  fn("reduce", p.precision.reduce);
  fn("steps", c.steps);
  fn("accumulation", c.accumulation);
  fn("rows", c.rows);
  fn("length", c.length);
  fn("ragged", c.ragged);
  fn("padded", c.padded);
  fn("packed", c.packed);
  fn("supervised_only", c.supervised_only);
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
  fn("resume", c.resume);
  for_each_layout_field("then.", c.then.mesh, c.then.parallel, fn);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fields_of(const FuzzCase& fuzz_case) {
  std::vector<std::pair<std::string, std::string>> fields;
  for_each_field(fuzz_case, [&](const std::string& key, const auto& value) {
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
    for_each_field(fuzz_case, [&](const std::string& name, auto& value) {
      if (key != name) return;
      parse(key, text, value);
      known = true;
    });
    check(known, ErrorCode::kInvalidArgument, "fuzz case: there is no field \"", key, "\"");
  }
  return fuzz_case;
}

FuzzCase without_resume(const FuzzCase& c) {
  FuzzCase alone = c;
  alone.resume = 0;
  alone.then = {};
  return alone;
}

FuzzCase resumed_case(const FuzzCase& c) {
  FuzzCase then = without_resume(c);
  const int micro_batches = c.mesh.data * c.accumulation;
  then.mesh = c.then.mesh;
  then.parallel = c.then.parallel;
  then.parallel.precision = c.parallel.precision;
  then.accumulation = micro_batches / then.mesh.data;
  check(then.accumulation * then.mesh.data == micro_batches, ErrorCode::kInvalidArgument,
        "fuzz: ", then.mesh.data, " data ranks do not divide ", micro_batches, " micro-batches");
  return then;
}

}  // namespace tessera::testing
