// SPDX-License-Identifier: MIT
#include "lib/model/tensor_pack.h"

#include <ATen/ATen.h>

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kMostDims = 6;
// Digits of a number that bf16 represents exactly.
constexpr int64_t kBase = 256, kDigits = 5;
constexpr int64_t kNumbersOfTensor = 2 + kMostDims;  // dtype, dimensions, sizes

// Elements in front of so many tensors; how many there are is the first number.
int64_t header_numel(int64_t tensors) { return kDigits * (1 + tensors * kNumbersOfTensor); }

std::vector<int64_t> first_numbers(const at::Tensor& packed, int64_t numel) {
  const at::Tensor digits = packed.detach().narrow(0, 0, numel).to(at::kCPU, at::kLong);
  const auto* digit = digits.const_data_ptr<int64_t>();
  std::vector<int64_t> numbers(static_cast<size_t>(numel / kDigits), 0);
  for (int64_t i = numel; i-- > 0;) {
    int64_t& number = numbers[static_cast<size_t>(i / kDigits)];
    number = number * kBase + digit[i];
  }
  return numbers;
}

std::vector<int64_t> numbers_of(const at::Tensor& packed) {
  return first_numbers(packed, header_numel(first_numbers(packed, kDigits).front()));
}

// The numbers as digits, in this dtype.
at::Tensor header_of(const std::vector<int64_t>& numbers, at::Device device, at::ScalarType dtype) {
  std::vector<float> digits(numbers.size() * kDigits, 0);
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t left = numbers[i];
    for (int64_t d = 0; d < kDigits; ++d, left /= kBase) {
      digits[i * kDigits + static_cast<size_t>(d)] = static_cast<float>(left % kBase);
    }
  }
  return at::tensor(digits).to(device, dtype);
}

PackedWithoutMemory*& of_this_thread() {
  thread_local PackedWithoutMemory* innermost = nullptr;
  return innermost;
}

}  // namespace

PackedWithoutMemory::PackedWithoutMemory() : outer_(std::exchange(of_this_thread(), this)) {}
PackedWithoutMemory::~PackedWithoutMemory() { of_this_thread() = outer_; }

PackedWithoutMemory& PackedWithoutMemory::here() {
  check(of_this_thread() != nullptr, ErrorCode::kInvalidArgument,
        "several tensors between blocks have shapes without memory in a dry step only");
  return *of_this_thread();
}

void PackedWithoutMemory::add(int64_t numel, const std::vector<int64_t>& numbers) {
  const auto [known, added] = known_.try_emplace(numel, Known{numbers});
  known->second.ambiguous |= known->second.numbers != numbers;
}

const std::vector<int64_t>& PackedWithoutMemory::of(int64_t numel) const {
  const auto known = known_.find(numel);
  check(known != known_.end() && !known->second.ambiguous, ErrorCode::kInvalidArgument,
        "blocks pass on tensors of ",
        known == known_.end() ? numel : numel - header_numel(known->second.numbers.front()),
        " elements together in two ways; without memory they cannot be told apart");
  return known->second.numbers;
}

at::Tensor Packing::operator()(const std::string& block, const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> numbers{static_cast<int64_t>(tensors.size())};
  at::ScalarType dtype = at::kHalf;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    check(tensor.defined() && tensor.is_floating_point() && tensor.dim() <= kMostDims,
          ErrorCode::kInvalidArgument, "block ", block, ": tensor ", i, " of those it returns is ",
          tensor.defined() ? concat(tensor.scalar_type(), " ", tensor.sizes())
                           : std::string("undefined"),
          "; blocks pass on floating tensors of at most ", kMostDims,
          " dimensions, others come with the micro-batch (MicroBatch::extra)");
    dtype = i == 0 ? tensor.scalar_type() : at::promote_types(dtype, tensor.scalar_type());
    const std::vector<int64_t> sizes = tensor.sizes().vec();
    numbers.push_back(static_cast<int64_t>(tensor.scalar_type()));
    numbers.push_back(tensor.dim());
    numbers.insert(numbers.end(), sizes.begin(), sizes.end());
    numbers.resize(1 + (i + 1) * kNumbersOfTensor);
  }
  at::Tensor& header = headers_[numbers];
  if (!header.defined()) header = header_of(numbers, tensors.front().device(), dtype);
  std::vector<at::Tensor> parts{header};
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.to(dtype).flatten());
  at::Tensor packed = at::cat(parts);
  if (packed.is_meta()) PackedWithoutMemory::here().add(packed.numel(), numbers);
  return packed;
}

std::vector<at::Tensor> Unpacking::operator()(const at::Tensor& packed,
                                              const MicroBatch& micro_batch) {
  std::vector<int64_t> key{packed.numel()};
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    key.push_back(-1);
    key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  };
  add(micro_batch.input_ids);
  for (const auto& item : micro_batch.extra) add(item.second);
  std::vector<int64_t>& numbers = headers_[key];
  if (packed.is_meta()) {
    numbers = PackedWithoutMemory::here().of(packed.numel());
  } else if (numbers.empty() || packed.is_cpu()) {
    numbers = numbers_of(packed);
  }
  std::vector<at::Tensor> tensors;
  int64_t first = header_numel(numbers[0]);
  for (int64_t i = 0; i < numbers[0]; ++i) {
    const int64_t* of_tensor = &numbers[static_cast<size_t>(1 + i * kNumbersOfTensor)];
    const at::IntArrayRef sizes(of_tensor + 2, static_cast<size_t>(of_tensor[1]));
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    tensors.push_back(
        packed.narrow(0, first, numel).view(sizes).to(static_cast<at::ScalarType>(of_tensor[0])));
    first += numel;
  }
  return tensors;
}

}  // namespace tessera
