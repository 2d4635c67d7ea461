// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/head_source.h"

#include <algorithm>
#include <set>

namespace tessera::program {
namespace {

constexpr size_t kMostNodes = 32;  // on the way to the source

ValueId first_tensor(const Node& node) {
  const ValueId self = value_of(node, "self");
  return self == kNoValue ? value_of(node, "input") : self;
}

bool is_one_of(const Node* node, std::initializer_list<const char*> targets) {
  return node != nullptr && std::any_of(targets.begin(), targets.end(),
                                        [&](const char* target) { return node->target == target; });
}

bool is_heads(const ProgramView& view, ValueId id) {
  return view.is_tensor(id) && view.value(id).sizes.size() == 4;
}

// Behind repeated heads, [batch, key_heads, sequence, d]; the operand where none are repeated.
ValueId before_repetition(const ProgramView& view, ValueId operand) {
  const int64_t heads = extent_of(view.value(operand), 1);
  ValueId id = operand, found = operand;
  for (size_t i = 0; i < 6; ++i) {
    const Node* node = view.maker(id);
    if (!is_one_of(node, {"aten.reshape.default", "aten.expand.default", "aten.unsqueeze.default",
                          "aten.view.default", "aten.clone.default", "aten.contiguous.default",
                          "aten.slice.Tensor", "aten.repeat_interleave.self_int"})) {
      break;
    }
    id = first_tensor(*node);
    if (id == kNoValue) break;
    const int64_t fewer = is_heads(view, id) ? extent_of(view.value(id), 1) : -1;
    if (fewer > 0 && fewer < heads && heads % fewer == 0) found = id;
    if (found != operand) break;
  }
  return found;
}

bool swaps_tokens_and_heads(const Node& node) {
  if (node.target == "aten.permute.default") {
    const Argument* dims = argument_of(node, "dims");
    const std::vector<Item> swapped = {Item(int64_t{0}), Item(int64_t{2}), Item(int64_t{1}),
                                       Item(int64_t{3})};
    return dims != nullptr && *dims == Argument(swapped);
  }
  if (node.target != "aten.transpose.int") return false;
  const auto first = number_of(node, "dim0"), second = number_of(node, "dim1");
  return (first == 1.0 && second == 2.0) || (first == 2.0 && second == 1.0);
}

// Through a transposition to heads by token.
HeadSource by_token(const ProgramView& view, HeadSource source) {
  const Node* node = view.maker(source.heads);
  if (source.by_token || node == nullptr || !swaps_tokens_and_heads(*node)) return source;
  source.heads = value_of(*node, "self");
  source.by_token = true;
  return source;
}

// The nearest value of the same shape that everything goes through which makes this one.
HeadSource before_rotation(const ProgramView& view, HeadSource from) {
  const auto later = [&](ValueId a, ValueId b) {
    return std::pair(view.facts().maker(a), a) > std::pair(view.facts().maker(b), b);
  };
  std::set<ValueId, decltype(later)> open(later);
  open.insert(from.heads);
  HeadSource source{.by_token = from.by_token};
  for (size_t i = 0; i < kMostNodes && !open.empty(); ++i) {
    const ValueId id = *open.begin();
    open.erase(open.begin());
    if (open.empty() && id != from.heads && view.value(id).sizes == view.value(from.heads).sizes) {
      source.heads = id;
      return source;
    }
    const Node* node = view.maker(id);
    if (node == nullptr) break;
    visit_reads(*node, [&](ValueId read) {
      if (!view.is_tensor(read)) return;
      const bool table = view.is_free(read);
      auto& tables = source.tables;
      const bool known = std::find(tables.begin(), tables.end(), read) != tables.end();
      if (!table) open.insert(read);
      if (table && !known) tables.push_back(read);
    });
  }
  return {};
}

}  // namespace

std::vector<HeadSource> head_sources(const ProgramView& view, ValueId operand, bool repeats) {
  std::vector<HeadSource> sources;
  const ValueId heads = repeats ? before_repetition(view, operand) : operand;
  const HeadSource plain = by_token(view, {.heads = heads});
  for (const HeadSource& from : {HeadSource{.heads = heads}, plain}) {
    const HeadSource rotated = before_rotation(view, from);
    if (rotated.heads == kNoValue || rotated.tables.size() != 2) continue;
    sources.push_back(by_token(view, rotated));
    break;
  }
  sources.push_back(plain);
  return sources;
}

}  // namespace tessera::program
