// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <cstring>

#include "tessera/comm/communicator.h"

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

}  // namespace tessera
