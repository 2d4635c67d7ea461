// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_case.h"

#include <algorithm>
#include <sstream>

#include "backends/layout_fields.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

using Fields = std::vector<std::pair<std::string, FieldRef>>;

// Adds the fields of the initial or the resumed layout.
void add_layout(Fields& fields, const std::string& prefix, MeshExtents& mesh,
                ParallelConfig& parallel) {
  fields.insert(fields.end(), {{prefix + "pipeline", &mesh.pipeline},
                               {prefix + "data", &mesh.data},
                               {prefix + "tensor", &mesh.tensor},
                               {prefix + "context", &mesh.context},
                               {prefix + "expert", &mesh.expert}});
  for (const LayoutField& field : layout_fields()) {
    fields.emplace_back(prefix + field.name, field.field(parallel));
  }
}

// The only list of fields outside the layout.
Fields all_fields(FuzzCase& c) {
  Fields fields{
      {"model", &c.model},
      {"blocks", &c.blocks},
      {"vocabulary", &c.vocabulary},
      {"hidden", &c.hidden},
      {"layers", &c.layers},
      {"heads", &c.heads},
      {"key_heads", &c.key_heads},
      {"head_dim", &c.head_dim},
      {"window", &c.window},
      {"hidden_dropout", &c.hidden_dropout},
      {"attention_dropout", &c.attention_dropout},
      {"lora", &c.lora},
      {"lora_on", &c.lora_on},
      {"balance_loss", &c.balance_loss},
      {"z_loss", &c.z_loss},
      {"fused", &c.fused},
      {"tie", &c.tie},
      {"frozen", &c.frozen},
      {"column_scale", &c.column_scale},
      {"own_weights", &c.own_weights},
      {"whole_module", &c.whole_module},
  };
  add_layout(fields, "", c.mesh, c.parallel);
  const Fields work{
      {"steps", &c.steps},
      {"accumulation", &c.accumulation},
      {"calls", &c.calls},
      {"rows", &c.rows},
      {"length", &c.length},
      {"ragged", &c.ragged},
      {"padded", &c.padded},
      {"packed", &c.packed},
      {"supervised_only", &c.supervised_only},
      {"untargeted", &c.untargeted},
      {"skip", &c.skip},
      {"evaluate", &c.evaluate},
      {"loss_scale", &c.loss_scale},
      {"max_norm", &c.max_norm},
      {"groups", &c.groups},
      {"optimizer", &c.optimizer},
      {"moments", &c.moments},
      {"min_8bit_size", &c.min_8bit_size},
      {"decay", &c.decay},
      {"learning_rate", &c.learning_rate},
      {"weight_decay", &c.weight_decay},
      {"beta1", &c.beta1},
      {"beta2", &c.beta2},
      {"epsilon", &c.epsilon},
      {"seed", &c.seed},
      {"refuse", &c.refuse},
      {"resume", &c.resume},
  };
  fields.insert(fields.end(), work.begin(), work.end());
  add_layout(fields, "then.", c.then.mesh, c.then.parallel);
  return fields;
}

// Short forms for long lines: 1 and 0, numbers without a decimal point; "same" for an unset dtype.
std::string written(const FieldRef& field) {
  if (const auto* on = std::get_if<bool*>(&field)) return **on ? "1" : "0";
  std::string text = text_of(field);
  if (std::holds_alternative<double*>(field) && text.ends_with(".0")) text.resize(text.size() - 2);
  return text.empty() && std::holds_alternative<Choice>(field) ? "same" : text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fields_of(const FuzzCase& fuzz_case) {
  std::vector<std::pair<std::string, std::string>> texts;
  FuzzCase copy = fuzz_case;
  for (const auto& [key, field] : all_fields(copy)) texts.emplace_back(key, written(field));
  return texts;
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
  const Fields fields = all_fields(fuzz_case);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    check(equals != std::string::npos, ErrorCode::kInvalidArgument, "fuzz case: \"", word,
          "\" is not key=value");
    const std::string key = word.substr(0, equals), text = word.substr(equals + 1);
    const auto of_key = std::ranges::find(fields, key, &Fields::value_type::first);
    check(of_key != fields.end(), ErrorCode::kInvalidArgument, "fuzz case: there is no field \"",
          key, "\"");
    // A choice may have a value of this name.
    const bool left_out = text == "same" && std::holds_alternative<Choice>(of_key->second);
    check(set_text(of_key->second, text) || (left_out && set_text(of_key->second, "")),
          ErrorCode::kInvalidArgument, "fuzz case: ", key, "=", text, " has no meaning");
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
  check(c.calls == 1 || then.mesh.data == c.mesh.data, ErrorCode::kInvalidArgument,
        "fuzz: with several calls a step seeds follow from which micro-batches a call has, so the "
        "run goes on with as many data ranks");
  return then;
}

}  // namespace tessera::testing
