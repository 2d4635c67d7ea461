// SPDX-License-Identifier: MIT
#include "lib/comm/described_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/comm/operation_scope.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr size_t kFields = 3;  // dtype, bytes of words, number of dimensions

}  // namespace

at::Tensor empty_header(at::Device device) {
  return at::empty({kFields + kMostDims}, at::TensorOptions(at::kLong).device(device));
}

at::Tensor header_of(const TensorForm& form, at::Device device) {
  check(form.sizes.size() <= kMostDims, ErrorCode::kInvalidArgument, "a tensor of ",
        form.sizes.size(), " dimensions is sent; at most ", kMostDims, " are supported");
  std::vector<int64_t> values{static_cast<int64_t>(form.dtype),
                              static_cast<int64_t>(form.words.size()),
                              static_cast<int64_t>(form.sizes.size())};
  values.insert(values.end(), form.sizes.begin(), form.sizes.end());
  values.resize(kFields + kMostDims);
  return at::tensor(values, at::kLong).to(device);
}

TensorForm read_header(const at::Tensor& header) {
  const at::Tensor on_host = header.cpu();
  const int64_t* values = on_host.const_data_ptr<int64_t>();
  const int64_t* sizes = values + kFields;
  return {.sizes = {sizes, sizes + values[2]},
          .dtype = static_cast<at::ScalarType>(values[0]),
          .words = std::string(static_cast<size_t>(values[1]), '\0')};
}

TensorForm broadcast_form(Communicator& comm, int root, const TensorForm& mine) {
  const bool gives = comm.rank() == root;
  const DataDecides the(DecidedByData::kWhether);  // not sent when the receiver knows the form
  const at::Tensor header = gives ? header_of(mine, comm.device()) : empty_header(comm.device());
  comm.broadcast(header, root).wait();
  TensorForm form = gives ? mine : read_header(header);
  if (form.words.empty()) return form;
  at::Tensor words = at::empty({static_cast<int64_t>(form.words.size())}, at::kByte);
  if (gives) std::ranges::copy(form.words, words.mutable_data_ptr<uint8_t>());
  words = words.to(comm.device());
  comm.broadcast(words, root).wait();
  if (gives) return form;
  words = words.cpu();
  std::copy_n(words.const_data_ptr<uint8_t>(), form.words.size(), form.words.begin());
  return form;
}

DescribedTensor broadcast_described(Communicator& comm, int root, const DescribedTensor& mine) {
  TensorForm form{.words = mine.words};
  if (mine.tensor.defined()) {
    form.sizes = mine.tensor.sizes().vec();
    form.dtype = mine.tensor.scalar_type();
  }
  form = broadcast_form(comm, root, form);
  DescribedTensor told{.words = form.words};
  if (form.dtype == at::ScalarType::Undefined) return told;
  told.tensor = comm.rank() == root
                    ? mine.tensor.contiguous()
                    : at::empty(form.sizes, at::TensorOptions(form.dtype).device(comm.device()));
  comm.broadcast(told.tensor, root).wait();
  return told;
}

}  // namespace tessera
