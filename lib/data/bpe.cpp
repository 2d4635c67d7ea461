// SPDX-License-Identifier: MIT
#include "lib/data/bpe.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <queue>

#include "lib/data/unicode.h"

namespace tessera {

struct Bpe::Ranks {
  struct Found {
    uint32_t rank;
    int32_t result;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const Found* find(int32_t left, int32_t right) const {
    const auto found = of_pair.find(key(left, right));
    return found == of_pair.end() ? nullptr : &found->second;
  }
  absl::flat_hash_map<uint64_t, Found> of_pair;
};

struct Bpe::Symbol {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  int32_t id;
  size_t begin, length;  // bytes; length 0: merged into its left neighbour
  size_t previous, next;
};

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges,
         absl::flat_hash_map<uint32_t, int32_t> characters)
    : byte_ids_(byte_ids), ranks_(std::make_unique<Ranks>()), characters_(std::move(characters)) {
  ranks_->of_pair.reserve(merges.size());
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    ranks_->of_pair[Ranks::key(merge.left, merge.right)] = {rank, merge.result};
  }
}

Bpe::~Bpe() = default;

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view text) const {
  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  const auto add = [&](int32_t id, size_t begin, size_t length) {
    symbols.push_back({id, begin, length, symbols.size() - 1, symbols.size() + 1});
  };
  const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  for (size_t at = 0; at < text.size();) {
    if (!characters_.empty()) {
      const CodePoint point = code_point_at(text, at);
      const auto known = characters_.find(point.code);
      if (known != characters_.end()) {
        add(known->second, at, point.length);
        at += point.length;
        continue;
      }
      for (size_t end = at + point.length; at < end; ++at) add(byte_id(text[at]), at, 1);
    } else {
      add(byte_id(text[at]), at, 1);
      ++at;
    }
  }
  if (!symbols.empty()) symbols.back().next = Symbol::kNone;
  return symbols;
}

void Bpe::encode(std::string_view text, size_t offset, std::vector<Token>& tokens) const {
  constexpr size_t kNone = Symbol::kNone;
  struct Candidate {
    uint32_t rank;
    int32_t result;
    size_t left;    // index of its first symbol
    size_t length;  // bytes
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols = symbols_of(text);
  std::vector<Candidate> heap;
  const auto consider = [&](size_t left) {
    if (left == kNone || symbols[left].next == kNone) return false;
    const Symbol& right = symbols[symbols[left].next];
    const auto* found = ranks_->find(symbols[left].id, right.id);
    if (found == nullptr) return false;
    heap.push_back({found->rank, found->result, left, symbols[left].length + right.length});
    return true;
  };
  const auto later = std::greater<Candidate>();
  const auto push = [&](size_t left) {
    if (consider(left)) std::push_heap(heap.begin(), heap.end(), later);
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.length == 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    // Stale if the pair has changed: other bytes, or a merge of another rank.
    if (left.length + right.length != best.length) continue;
    const auto* found = ranks_->find(left.id, right.id);
    if (found == nullptr || found->rank != best.rank) continue;
    left.id = best.result;
    left.length = best.length;
    left.next = right.next;
    right.length = 0;
    if (left.next != kNone) symbols[left.next].previous = best.left;
    push(best.left);
    push(left.previous);
  }
  for (size_t i = 0; i < symbols.size(); i = symbols[i].next) {
    const Symbol& symbol = symbols[i];
    tokens.push_back({symbol.id, offset + symbol.begin, offset + symbol.begin + symbol.length});
  }
}

uint32_t character_of_byte(unsigned char byte) {
  const auto printable = [](uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  if (printable(byte)) return byte;
  uint32_t code = 256;  // the others are 256, 257, ... in order
  for (uint32_t b = 0; b < byte; ++b) code += !printable(b);
  return code;
}

bool token_bytes(std::string_view token, std::string& bytes) {
  static const std::vector<int> byte_of_character = [] {
    std::vector<int> table(512, -1);
    for (int byte = 0; byte < 256; ++byte) {
      table[character_of_byte(static_cast<unsigned char>(byte))] = byte;
    }
    return table;
  }();
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    if (point.code >= byte_of_character.size() || byte_of_character[point.code] < 0) return false;
    bytes += static_cast<char>(byte_of_character[point.code]);
    at += point.length;
  }
  return true;
}

}  // namespace tessera
