// SPDX-License-Identifier: MIT
#include "lib/data/normalizer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/data/unicode.h"

namespace tessera {
namespace {

NormalizedText unchanged(std::string_view text) {
  NormalizedText same{std::string(text), std::vector<size_t>(text.size() + 1)};
  std::iota(same.origin.begin(), same.origin.end(), size_t{0});
  return same;
}

std::optional<NormalizedText> after(const Normalizer::Prepend& step, std::string_view text) {
  if (text.empty() || step.text.empty()) return std::nullopt;
  NormalizedText longer = unchanged(text);
  longer.text.insert(0, step.text);
  longer.origin.insert(longer.origin.begin(), step.text.size(), 0);
  return longer;
}

std::optional<NormalizedText> after(const Normalizer::Replace& step, std::string_view text) {
  if (step.from.empty() || text.find(step.from) == text.npos) return std::nullopt;
  NormalizedText changed;
  size_t at = 0;
  while (at < text.size()) {
    const size_t found = std::min(text.find(step.from, at), text.size());
    for (; at < found; ++at) {
      changed.text += text[at];
      changed.origin.push_back(at);
    }
    if (found == text.size()) break;
    changed.text += step.to;
    changed.origin.insert(changed.origin.end(), step.to.size(), found);
    at = found + step.from.size();
  }
  changed.origin.push_back(text.size());
  return changed;
}

std::optional<NormalizedText> after(const Normalizer::Strip& step, std::string_view text) {
  size_t begin = 0, end = text.size();
  while (step.left && begin < end && is_white_space(code_point_at(text, begin).code)) {
    begin += code_point_at(text, begin).length;
  }
  while (step.right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (text[last] & 0xC0) == 0x80) --last;
    if (!is_white_space(code_point_at(text, last).code)) break;
    end = last;
  }
  if (end - begin == text.size()) return std::nullopt;
  NormalizedText shorter{std::string(text.substr(begin, end - begin)),
                         std::vector<size_t>(end - begin + 1)};
  std::iota(shorter.origin.begin(), shorter.origin.end(), begin);
  // The first and last token cover the stripped text.
  shorter.origin.front() = 0;
  shorter.origin.back() = text.size();
  return shorter;
}

std::optional<NormalizedText> after(const Normalizer::Nfc&, std::string_view text) {
  return nfc_of(text);
}

}  // namespace

bool Normalizer::only_composes() const {
  return std::ranges::all_of(steps_,
                             [](const Step& step) { return std::holds_alternative<Nfc>(step); });
}

std::optional<NormalizedText> Normalizer::apply(std::string_view text, size_t begin,
                                                size_t end) const {
  std::optional<NormalizedText> result;
  for (const Step& step : steps_) {
    const std::string_view now = result ? result->text : text.substr(begin, end - begin);
    auto next = std::visit([&](const auto& kind) { return after(kind, now); }, step);
    if (!next) continue;
    for (size_t& place : next->origin) place = result ? result->origin[place] : begin + place;
    result = std::move(next);
  }
  return result;
}

}  // namespace tessera
