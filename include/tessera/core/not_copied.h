// SPDX-License-Identifier: MIT
#pragma once

namespace tessera {

/// Base of classes that are neither copied nor moved.
class NotCopied {
 public:
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;

 protected:
  NotCopied() = default;
  ~NotCopied() = default;
};

}  // namespace tessera
