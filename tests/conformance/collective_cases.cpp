// SPDX-License-Identifier: MIT
// Collectives: values, dtypes, sizes, aliasing, bits.
#include <ATen/CPUGeneratorImpl.h>

#include "tests/conformance/cases.hpp"

namespace tessera::test {
namespace {

void all_reduce_values(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : kCounts) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const at::Tensor x = values(comm, comm.rank(), count, dtype);
        comm.all_reduce(x, op).wait();
        require_bit_equal(x, reduced(comm, count, dtype, op, 0),
                          concat("all_reduce ", dtype, " x ", count));
      }
    }
  }
}

void all_gather_values(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : kCounts) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < comm.size(); ++r) parts.push_back(values(comm, r, count, dtype));
      const at::Tensor expected = at::cat(parts);
      const std::string what = concat("all_gather ", dtype, " x ", count);
      const at::Tensor separate = at::zeros_like(expected);
      comm.all_gather(separate, parts[comm.rank()]).wait();
      require_bit_equal(separate, expected, what);
      require_bit_equal(parts[comm.rank()], values(comm, comm.rank(), count, dtype),
                        what + ", the input");
      const at::Tensor in_place = at::zeros_like(expected);
      const at::Tensor own = in_place.narrow(0, comm.rank() * count, count);
      own.copy_(parts[comm.rank()]);
      comm.all_gather(in_place, own).wait();
      require_bit_equal(in_place, expected, what + " in place");
    }
  }
}

void reduce_scatter_values(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : kCounts) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const int64_t whole = count * comm.size();
        const at::Tensor expected =
            reduced(comm, whole, dtype, op, 0).narrow(0, comm.rank() * count, count);
        const std::string what = concat("reduce_scatter ", dtype, " x ", count);
        const at::Tensor input = values(comm, comm.rank(), whole, dtype);
        const at::Tensor output = at::zeros_like(expected);
        comm.reduce_scatter(output, input, op).wait();
        require_bit_equal(output, expected, what);
        require_bit_equal(input, values(comm, comm.rank(), whole, dtype), what + ", the input");
        const at::Tensor own = input.narrow(0, comm.rank() * count, count);
        comm.reduce_scatter(own, input, op).wait();
        require_bit_equal(own, expected, what + " in place");
      }
    }
  }
}

void all_to_all_values(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : kCounts) {
      std::vector<at::Tensor> expected;
      for (int r = 0; r < comm.size(); ++r) {
        expected.push_back(
            values(comm, r, count * comm.size(), dtype).narrow(0, comm.rank() * count, count));
      }
      const at::Tensor input = values(comm, comm.rank(), count * comm.size(), dtype);
      const at::Tensor output = at::zeros_like(input);
      comm.all_to_all(output, input).wait();
      const std::string what = concat("all_to_all ", dtype, " x ", count);
      require_bit_equal(output, at::cat(expected), what);
      require_bit_equal(input, values(comm, comm.rank(), count * comm.size(), dtype),
                        what + ", the input");
    }
  }
}

// Elements that rank `from` sends to rank `to`; zero for some pairs.
int64_t unequal(int from, int to, int64_t scale) { return (from + 2 * to) % 4 * scale; }

void unequal_parts(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t scale : {1, 97, 40'003}) {
      if (scale > 97 && dtype != at::kFloat) continue;
      std::vector<int64_t> gives, takes;
      std::vector<at::Tensor> input, expected;
      for (int r = 0; r < comm.size(); ++r) {
        gives.push_back(unequal(comm.rank(), r, scale));
        takes.push_back(unequal(r, comm.rank(), scale));
        input.push_back(values(comm, 3 * comm.rank() + r, gives.back(), dtype));
        expected.push_back(values(comm, 3 * r + comm.rank(), takes.back(), dtype));
      }
      const at::Tensor wanted = at::cat(expected);
      const at::Tensor output = at::zeros_like(wanted);
      const std::string what = concat("all_to_all of unequal parts of ", dtype, " x ", scale);
      comm.all_to_all(output, at::cat(input), takes, gives).wait();
      require_bit_equal(output, wanted, what);
      const at::Tensor again = at::zeros_like(wanted);
      const at::Tensor sum = values(comm, comm.rank(), 11, dtype);
      Group group(comm);
      comm.all_to_all(again, at::cat(input), takes, gives);
      comm.all_reduce(sum);
      group.end().wait();
      require_bit_equal(again, wanted, what + " in a group");
      require_bit_equal(sum, reduced(comm, 11, dtype, ReduceOp::kSum, 0), "beside it");
    }
  }
  const at::Tensor none = at::zeros({0}, at::TensorOptions(at::kFloat).device(comm.device()));
  const std::vector<int64_t> nothing(static_cast<size_t>(comm.size()), 0);
  comm.all_to_all(none, none, nothing, nothing).wait();
}

void broadcast_values(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < comm.size(); ++root) {
        const at::Tensor x = values(comm, comm.rank(), count, dtype);
        comm.broadcast(x, root).wait();
        require_bit_equal(x, values(comm, root, count, dtype),
                          concat("broadcast ", dtype, " x ", count, " from ", root));
      }
    }
  }
}

// Rounded sums: all ranks get equal bits, near the exact sum.
void same_bits_everywhere(Communicator& comm) {
  const auto random = [&](int rank, int64_t count) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1000 + rank);
    return at::randn({count}, generator, at::kFloat);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t count : {5, 4097, 100'001}) {
      const at::Tensor x = random(comm.rank(), count).to(dtype).to(comm.device());
      at::Tensor exact = at::zeros({count}, at::kDouble);
      at::Tensor magnitude = at::zeros({count}, at::kDouble);
      for (int r = 0; r < comm.size(); ++r) {
        const at::Tensor value = random(r, count).to(dtype).to(at::kDouble);
        exact += value;
        magnitude += value.abs();
      }
      comm.all_reduce(x).wait();
      const at::Tensor all = at::empty({comm.size(), count}, x.options());
      comm.all_gather(all, x).wait();
      for (int r = 0; r < comm.size(); ++r) {
        require_bit_equal(all[r], x, concat("sum of ", dtype, " on rank ", r));
      }
      const double epsilon = dtype == at::kDouble  ? 1e-15
                             : dtype == at::kFloat ? 1e-7
                             : dtype == at::kHalf  ? 1e-3
                                                   : 8e-3;
      const at::Tensor error = (x.cpu().to(at::kDouble) - exact).abs();
      require((error <= comm.size() * epsilon * magnitude).all().item<bool>(), "sum of ", dtype,
              " is off by up to ", error.max().item<double>());
    }
  }
}

void large_tensors(Communicator& comm) {
  const int64_t count = 400'007;
  const at::Tensor x = values(comm, comm.rank(), count, at::kFloat);
  comm.all_reduce(x).wait();
  require_bit_equal(x, reduced(comm, count, at::kFloat, ReduceOp::kSum, 0), "large all_reduce");
  const at::Tensor all = at::empty({comm.size(), count}, x.options());
  comm.all_gather(all, values(comm, comm.rank(), count, at::kFloat)).wait();
  for (int r = 0; r < comm.size(); ++r) {
    require_bit_equal(all[r], values(comm, r, count, at::kFloat), "large all_gather");
  }
  const at::Tensor part = at::empty({count}, x.options());
  comm.reduce_scatter(part, all.view(-1)).wait();
  require_bit_equal(part, all[comm.rank()] * comm.size(), "large reduce_scatter");
}

void several_in_flight(Communicator& comm) {
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(values(comm, comm.rank() + i, i % 3 == 0 ? 40'000 : 100 + i, at::kFloat));
    works.push_back(i % 4 == 3 ? comm.broadcast(tensors[i], i % comm.size())
                               : comm.all_reduce(tensors[i]));
  }
  for (const int i : {11, 3, 7, 0, 1, 10, 2, 9, 4, 8, 5, 6}) {
    Work copy = works[i];
    works[i].wait();
    copy.wait();  // repeats the operation
    works[i].wait();
    const int64_t count = tensors[i].numel();
    const at::Tensor expected = i % 4 == 3 ? values(comm, i % comm.size() + i, count, at::kFloat)
                                           : reduced(comm, count, at::kFloat, ReduceOp::kSum, i);
    require_bit_equal(tensors[i], expected, concat("operation ", i, " waited out of order"));
  }
}

// An all-reduce must see earlier writes on the current stream, and later work must see its result.
void ordered_with_compute(Communicator& comm) {
  at::Tensor x = at::ones({200'000}, at::TensorOptions(at::kFloat).device(comm.device()));
  double expected = 1;
  for (int i = 0; i < 20; ++i) {
    x.mul_(2);
    comm.all_reduce(x).wait();
    x.div_(2 * comm.size());
    x.add_(1);
    expected += 1;
  }
  require_bit_equal(x, at::full_like(x, expected), "twenty reductions with arithmetic between");
}

void dropped_work(Communicator& comm) {
  for (int i = 0; i < 8; ++i) {
    comm.all_reduce(at::full({100'000}, 1.0, at::TensorOptions(at::kFloat).device(comm.device())));
    at::Tensor other = at::zeros({100'000}, at::TensorOptions(at::kFloat).device(comm.device()));
    comm.all_reduce(other).wait();
    require_bit_equal(other, at::zeros_like(other), "a tensor made after work was dropped");
  }
  comm.barrier();
}

}  // namespace

std::vector<ConformanceCase> collective_cases() {
  return {{"all_reduce", all_reduce_values},
          {"all_gather", all_gather_values},
          {"reduce_scatter", reduce_scatter_values},
          {"all_to_all", all_to_all_values},
          {"all_to_all of unequal parts", unequal_parts},
          {"broadcast", broadcast_values},
          {"the same bits everywhere", same_bits_everywhere},
          {"large tensors", large_tensors},
          {"several operations in flight", several_in_flight},
          {"operations are ordered with compute", ordered_with_compute},
          {"work that nobody waits for", dropped_work}};
}

}  // namespace tessera::test
