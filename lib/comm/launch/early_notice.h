// SPDX-License-Identifier: MIT
#pragma once
// Hearing of an exception where it is thrown, before destructors run on its way out.
#include <exception>
#include <functional>

namespace tessera {

// Runs fn. When an exception is about to leave it, `about` is called where that was thrown, while
// all that fn made still exists; null: it is no std::exception. What `about` returns then runs on a
// thread of its own, so that no lock of the thrower can stop it, and has ended when the exception
// gets out of here. Exceptions that are caught inside fn are not seen. Threads of fn's are not
// watched.
void run_with_early_notice(
    const std::function<void()>& fn,
    const std::function<std::function<void()>(const std::exception* error)>& about);

}  // namespace tessera
