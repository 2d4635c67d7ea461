// Every stage's parameters to every rank, in the order of the model.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>

#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// What goes ahead of a value, as text.
std::string describe(const VisitedParameter& parameter) {
  std::ostringstream text;
  text << parameter.block << '\n' << parameter.name << '\n';
  text << static_cast<int>(parameter.value.scalar_type()) << ' ';
  for (int64_t size : parameter.value.sizes()) text << size << ' ';
  return text.str();
}

struct Described {
  std::string block, name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;

  explicit Described(const std::string& bytes) {
    std::istringstream text(bytes);
    std::getline(text, block);
    std::getline(text, name);
    int type = 0;
    text >> type;
    dtype = static_cast<at::ScalarType>(type);
    for (int64_t size; text >> size;) sizes.push_back(size);
  }
};

// Broadcasts byte strings and tensors of one stage after the other.
class Stream {
 public:
  explicit Stream(Communicator& comm) : comm_(comm) {}

  void send(const std::string& bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    broadcast(at::full({1}, size, options(at::kLong)), comm_.rank());
    if (size == 0) return;
    at::Tensor data = at::empty({size}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), data.mutable_data_ptr<uint8_t>());
    broadcast(data.to(comm_.device()), comm_.rank());
  }
  std::string receive(int root) {
    const at::Tensor size = broadcast(at::zeros({1}, options(at::kLong)), root);
    const auto numel = size.item<int64_t>();
    if (numel == 0) return "";
    const at::Tensor data = broadcast(at::empty({numel}, options(at::kByte)), root).cpu();
    const auto* begin = data.const_data_ptr<uint8_t>();
    return {begin, begin + numel};
  }
  at::Tensor broadcast(const at::Tensor& tensor, int root) {
    comm_.broadcast(tensor, root).wait();
    return tensor;
  }
  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(dtype).device(comm_.device());
  }

 private:
  Communicator& comm_;
};

}  // namespace

// While this rank's own visit runs, parts of other stages are let in where they belong: a part's
// parameters, one by one, then an empty description. All stages come to a shared block at once. A
// tied parameter is said by its owner's stage.
void Pipeline::visit(const std::function<void(const ParameterVisitor&)>& visit_own,
                     const ParameterVisitor& visitor) {
  const at::NoGradGuard no_grad;
  Stream stream(pipeline_);
  const auto stages = static_cast<size_t>(pipeline_.size());
  const auto me = static_cast<size_t>(pipeline_.rank());
  size_t next = 0;  // part
  auto advance_to = [&](size_t part) {
    for (; next < part; ++next) {
      if (next % stages == me) {
        stream.send("");
        continue;
      }
      const int root = static_cast<int>(next % stages);
      for (auto text = stream.receive(root); !text.empty(); text = stream.receive(root)) {
        const Described known(text);
        const at::Tensor value =
            stream.broadcast(at::empty(known.sizes, stream.options(known.dtype)), root);
        visitor({known.block, known.name, value, Placement{}});
      }
    }
  };
  auto said_elsewhere = [&](const Placement& placement) {
    return std::ranges::any_of(placement.holders, [&](const Holders& held) {
      return held.ranks->rank() != 0 && std::ranges::any_of(holders_, [&](const auto& ours) {
               return ours.get() == held.ranks;
             });
    });
  };
  visit_own([&](const VisitedParameter& parameter) {
    if (said_elsewhere(parameter.placement)) return;
    const size_t block = block_index_.at(parameter.block);
    if (is_shared(block)) {
      if (block > 0) advance_to(parts_.size());
      const at::Tensor value = gather_whole(parameter.value, parameter.placement);
      return visitor({parameter.block, parameter.name, value, parameter.placement});
    }
    advance_to(std::max(next, part_of_block(block)));
    const at::Tensor value = gather_whole(parameter.value, parameter.placement).contiguous();
    const VisitedParameter whole{parameter.block, parameter.name, value, parameter.placement};
    stream.send(describe(whole));
    stream.broadcast(value, pipeline_.rank());
    visitor(whole);
  });
  advance_to(parts_.size());
}

void Pipeline::visit_parameters(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_parameter_slices(own); }, visitor);
}

void Pipeline::visit_gradients(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_gradient_slices(own); }, visitor);
}

void Pipeline::visit_buffers(const ParameterVisitor& visitor) {
  visit([&](const ParameterVisitor& own) { inner_->visit_buffers(own); }, visitor);
}

}  // namespace tessera
