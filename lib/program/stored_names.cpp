// SPDX-License-Identifier: MIT
#include "tessera/program/stored_names.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "lib/core/folder_file.h"
#include "lib/program/assemble_blocks.h"
#include "lib/program/cut_programs.h"
#include "lib/program/manifest.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using program::StoredForm;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

bool has_slice(const StoredForm& form) {
  return form.kind == StoredForm::Kind::kSlice ||
         std::any_of(form.of.begin(), form.of.end(), has_slice);
}

void write_form(JsonWriter& out, const StoredForm& form) {
  using Kind = StoredForm::Kind;
  if (form.kind == Kind::kTensor) {
    out.value(form.name);
    return;
  }
  out.begin_object();
  if (form.kind == Kind::kTranspose) {
    out.field("kind", "transpose").field("dims", std::vector<int64_t>{form.dim, form.other});
    out.key("of");
    write_form(out, form.of[0]);
  } else {
    out.field("kind", form.kind == Kind::kStack ? "stack" : "concat").field("dim", form.dim);
    out.key("of").begin_array();
    for (const StoredForm& part : form.of) write_form(out, part);
    out.end_array();
  }
  out.end_object();
}

void append_tensors(const Json& place, const StoredForm& form, const at::Tensor& value,
                    NamedTensors& tensors) {
  using Kind = StoredForm::Kind;
  if (form.kind == Kind::kTensor) {
    tensors.emplace_back(form.name, value);
    return;
  }
  const auto count = static_cast<int64_t>(form.of.size());
  const bool parts = form.kind == Kind::kStack || form.kind == Kind::kConcat;
  const bool fits = (parts || form.kind == Kind::kTranspose) &&
                    std::max(form.dim, form.other) < value.dim() &&
                    (form.kind != Kind::kStack || value.size(form.dim) == count) &&
                    (form.kind != Kind::kConcat || value.size(form.dim) % count == 0);
  if (!fits) place.fail(concat("a parameter of shape ", value.sizes(), " is not stored so"));
  if (form.kind == Kind::kTranspose) {
    append_tensors(place, form.of[0], value.transpose(form.dim, form.other), tensors);
    return;
  }
  const int64_t length = value.size(form.dim) / count;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor part = form.kind == Kind::kStack ? value.select(form.dim, i)
                                                      : value.narrow(form.dim, i * length, length);
    append_tensors(place, form.of[static_cast<size_t>(i)], part, tensors);
  }
}

}  // namespace

std::string stored_names(const std::string& directory) {
  const program::Manifest manifest =
      program::read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const program::CutPrograms programs = program::read_programs(directory, manifest, /*cut=*/true);
  // Of the data rank 0: names do not depend on whose statistics count.
  const program::ModelParts parts = program::assemble_blocks(
      programs, manifest, std::make_shared<const program::Constants>(""), {.data_rank = 0});
  JsonWriter out;
  out.begin_object();
  for (const auto& block : parts.blocks) {
    for (const program::BlockParameter& parameter : block->parameters) {
      if (parameter.alias) continue;
      const program::ParameterEntry& entry = parameter.entry;
      const bool own = entry.stored.kind == StoredForm::Kind::kNone || has_slice(entry.stored);
      out.key(block->name + "." + parameter.name);
      write_form(out, own ? StoredForm{.kind = StoredForm::Kind::kTensor, .name = entry.name}
                          : entry.stored);
    }
    for (const program::BlockBuffer& buffer : block->buffers) {
      out.field(block->name + "." + buffer.name,
                buffer.stored.empty() ? buffer.name : buffer.stored);
    }
  }
  return out.end_object().text();
}

NamedTensors stored_tensors(const Json& stored, const at::Tensor& value) {
  NamedTensors tensors;
  append_tensors(stored, program::read_stored_form(stored), value, tensors);
  return tensors;
}

}  // namespace tessera
