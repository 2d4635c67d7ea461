// SPDX-License-Identifier: MIT
#include "lib/program/constants.h"

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      return "other";
  }
}

}  // namespace

Constants::Constants(const std::string& path) {
  if (!path.empty()) file_ = std::make_unique<SafetensorsFile>(path);
}

std::string Constants::stored_name(const std::string& name, at::ScalarType dtype,
                                   bool training) const {
  if (file_ == nullptr) return "";
  const std::string own = concat(dtype_name(dtype), training ? ".train/" : ".eval/", name);
  if (file_->find(own) != nullptr) return own;
  return file_->find(name) != nullptr ? name : std::string();
}

bool Constants::has(const std::string& name, at::ScalarType dtype, bool training) const {
  return !stored_name(name, dtype, training).empty();
}

at::Tensor Constants::read(const std::string& name, at::ScalarType dtype, bool training) const {
  const std::string stored = stored_name(name, dtype, training);
  check(!stored.empty(), ErrorCode::kDataLoss, file_ == nullptr ? "the directory" : file_->path(),
        " has no value of \"", name, "\", which a program takes");
  return file_->read(stored);
}

}  // namespace tessera::program
