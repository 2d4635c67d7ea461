#include "tessera/comm/control_channel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera {

int CommunicatorChannel::rank() const { return comm_->rank(); }
int CommunicatorChannel::size() const { return comm_->size(); }

std::vector<std::string> CommunicatorChannel::exchange(const std::string& bytes) {
  const int64_t size = comm_->size();
  const at::Device device = comm_->device();
  const at::Tensor gathered = at::empty({size}, at::dtype(at::kLong).device(device));
  const auto length = static_cast<int64_t>(bytes.size());
  comm_->all_gather(gathered, at::full({1}, length, gathered.options())).wait();
  const at::Tensor lengths = gathered.cpu();
  const int64_t longest = lengths.max().item<int64_t>();
  const at::Tensor mine = at::zeros({longest}, at::kByte);
  if (!bytes.empty()) std::memcpy(mine.data_ptr(), bytes.data(), bytes.size());
  const at::Tensor parts = at::empty({size, longest}, at::dtype(at::kByte).device(device));
  comm_->all_gather(parts, mine.to(device)).wait();
  const at::Tensor all = parts.cpu();
  std::vector<std::string> texts;
  for (int64_t r = 0; r < size; ++r) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + r * longest;
    texts.emplace_back(begin, lengths[r].item<int64_t>());
  }
  return texts;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += concat(text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += concat("-", ranks[last]);
    i = last + 1;
  }
  return text;
}

namespace {

// The first line in which two texts differ.
std::string first_difference(const std::string& expected, const std::string& actual) {
  std::istringstream a(expected), b(actual);
  for (int line = 1;; ++line) {
    std::string left = "(nothing)", right = "(nothing)";
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "in line ends";
    if (left != right) {
      return concat("line ", line, " is '", right.substr(0, 200), "' instead of '",
                    left.substr(0, 200), "'");
    }
  }
}

}  // namespace

void require_same_on_all_ranks(ControlChannel& channel, const std::string& what,
                               const std::string& text) {
  const std::vector<std::string> texts = channel.exchange(text);
  std::map<std::string, std::vector<int>> ranks_with;
  for (size_t r = 0; r < texts.size(); ++r) ranks_with[texts[r]].push_back(static_cast<int>(r));
  if (ranks_with.size() == 1) return;
  const std::string* expected = &texts[0];
  for (const auto& [value, ranks] : ranks_with) {
    if (ranks.size() > ranks_with[*expected].size()) expected = &value;
  }
  std::string message = what + " is not the same on all ranks:";
  for (const auto& [value, ranks] : ranks_with) {
    if (value == *expected) continue;
    message += concat(" on rank ", rank_list(ranks), " ", first_difference(*expected, value), ";");
  }
  fail(ErrorCode::kInvalidArgument, message, " start every rank with the same settings and files");
}

}  // namespace tessera
