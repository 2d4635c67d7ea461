// SPDX-License-Identifier: MIT
#include "python/tensors.h"

#include <ATen/DLConvertor.h>
#include <ATen/ops/from_blob.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::python {
namespace {

// DLPack's host memory, pinned or not.
bool is_host(int kind) { return kind == kDLCPU || kind == kDLCUDAHost; }

// Checks the array's device and returns its kind.
int check_device(nb::handle array, at::Device device, const std::string& what) {
  const auto [kind, index] = nb::cast<std::pair<int, int>>(array.attr("__dlpack_device__")());
  const bool here = is_host(kind) || (kind == kDLCUDA && device.is_cuda() &&
                                      index == static_cast<int>(device.index()));
  check(here, ErrorCode::kInvalidArgument, what, " lies on ",
        kind == kDLCUDA ? concat("cuda:", index) : concat("a device of DLPack's kind ", kind),
        ", this rank works on ", device.str(), "; give an array of the host, or of that device");
  return kind;
}

nb::object capsule_of(nb::handle array, int kind, const std::string& what) {
  nb::dict how;
  if (kind == kDLCUDA) how["stream"] = 1;  // the default stream, on which tessera reads
  try {
    nb::dict newer = nb::steal<nb::dict>(PyDict_Copy(how.ptr()));
    newer["max_version"] = nb::make_tuple(1, 0);  // otherwise NumPy exports no read-only arrays
    try {
      return array.attr("__dlpack__")(**newer);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
    }
    return array.attr("__dlpack__")(**how);
  } catch (nb::python_error& error) {
    fail(ErrorCode::kInvalidArgument, what,
         " does not give its memory: ", nb::str(error.value()).c_str());
  }
}

// Frees a producer's memory, which may belong to Python.
template <typename Managed>
struct Release {
  void operator()(Managed* managed) const {
    if (managed->deleter == nullptr || Py_IsInitialized() == 0) return;
    const nb::gil_scoped_acquire locked;
    managed->deleter(managed);
  }
};

// Takes over the capsule's memory as a view. If it throws, the capsule keeps it.
template <typename Managed>
at::Tensor adopt(const nb::object& capsule, const char* name, const char* used, at::Device device,
                 const std::string& what) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    check(managed->version.major == DLPACK_MAJOR_VERSION, ErrorCode::kInvalidArgument, what,
          " is given by DLPack ", managed->version.major, ".", managed->version.minor,
          "; this module reads DLPack ", DLPACK_MAJOR_VERSION, ".x");
  }
  const DLTensor& tensor = managed->dl_tensor;
  const at::ScalarType dtype = at::toScalarType(tensor.dtype);
  const std::vector<int64_t> sizes(tensor.shape, tensor.shape + tensor.ndim);
  std::vector<int64_t> strides(tensor.ndim, 1);  // null: row-major
  for (int d = tensor.ndim - 2; d >= 0; --d) strides[d] = strides[d + 1] * sizes[d + 1];
  if (tensor.strides != nullptr) strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  check(std::ranges::all_of(strides, [](int64_t stride) { return stride >= 0; }),
        ErrorCode::kInvalidArgument, what, " has strides ", at::IntArrayRef(strides),
        "; a negative one is not read: give a copy, as of numpy.ascontiguousarray()");
  PyCapsule_SetName(capsule.ptr(), used);  // owned here from now on
  const std::shared_ptr<Managed> owner(managed, Release<Managed>());
  const at::Device place = is_host(tensor.device.device_type) ? at::Device(at::kCPU) : device;
  return at::from_blob(
      static_cast<char*>(tensor.data) + tensor.byte_offset, sizes, strides, [owner](void*) {},
      at::TensorOptions(dtype).device(place), place);
}

}  // namespace

at::Tensor tensor_of(nb::handle array, at::Device device, const std::string& what) {
  check(nb::hasattr(array, "__dlpack__") && nb::hasattr(array, "__dlpack_device__"),
        ErrorCode::kInvalidArgument, what, " is of type ", nb::type_name(array.type()).c_str(),
        ", which has no __dlpack__; give an array of NumPy, torch or another library with DLPack");
  const int kind = check_device(array, device, what);
  const nb::object capsule = capsule_of(array, kind, what);
  const char* versioned = "dltensor_versioned";
  try {
    if (PyCapsule_IsValid(capsule.ptr(), versioned) != 0) {
      return adopt<DLManagedTensorVersioned>(capsule, versioned, "used_dltensor_versioned", device,
                                             what);
    }
    check(PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0, ErrorCode::kInvalidArgument, what,
          ": __dlpack__() gave no DLPack capsule");
    return adopt<DLManagedTensor>(capsule, "dltensor", "used_dltensor", device, what);
  } catch (const c10::Error& error) {
    fail(ErrorCode::kInvalidArgument, what, ": ", error.what_without_backtrace());
  }
}

Array array_of(const at::Tensor& tensor) {
  const std::vector<size_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  auto kept = std::make_unique<at::Tensor>(tensor);
  float* data = tensor.mutable_data_ptr<float>();
  const nb::capsule owner(kept.release(),
                          [](void* held) noexcept { delete static_cast<at::Tensor*>(held); });
  return Array(data, shape.size(), shape.data(), owner);
}

nb::object torch_tensor_of(const at::Tensor& tensor) {
  return torch_module("tensors of torch")
      .attr("from_dlpack")(
          nb::steal(PyCapsule_New(at::toDLPack(tensor), "dltensor", [](PyObject* capsule) {
            if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // taken over
            auto* managed =
                static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
            managed->deleter(managed);
          })));
}

nb::module_ torch_module(const char* what) {
  try {
    return nb::module_::import_("torch");
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    fail(ErrorCode::kInvalidArgument, what,
         " need torch, which is not installed here; install the version that tessera was built "
         "with");
  }
}

}  // namespace tessera::python
