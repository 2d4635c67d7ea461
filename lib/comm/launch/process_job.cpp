// SPDX-License-Identifier: MIT
#include "lib/comm/launch/process_job.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lib/core/host_threads.h"
#include "tessera/comm/checked.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

// Divides the host's cores among its ranks, unless OMP_NUM_THREADS is set or the process is bound.
void share_cores(int local_size) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const auto allowed = static_cast<int>(allowed_cores().size());
  at::set_num_threads(std::max(1, std::min(allowed, online / std::max(1, local_size))));
}

// A GPU rank also runs threads for messages, data and launches.
void warn_about_one_core(const Communicator& world) {
  if (world.rank() != 0 || !world.device().is_cuda() || allowed_cores().size() > 1) return;
  log(LogLevel::kWarning,
      "this rank may run on one core only, which slows everything that the GPU waits for; give "
      "mpirun --bind-to none (or numa): for one or two ranks it binds each to a core");
}

// Exchanges exit statuses with the other ranks; the reporting rank logs them. Returns the exit
// code.
int conclude_with(Bootstrap& bootstrap, const ExitStatus& mine) {
  if (mine.code != 0) bootstrap.abort(mine.reason(bootstrap.rank()));
  std::vector<ExitStatus> endings;
  try {
    for (const std::string& status : bootstrap.conclude(mine.pack())) {
      endings.push_back(ExitStatus::unpack(status));
    }
  } catch (const Error& error) {  // rank 0 has ended: only this rank can report
    endings = {mine.code != 0 ? mine : exit_status_of(error.code(), error.what())};
    log_exit_statuses(endings);
    return root_cause(endings);
  }
  const auto reporter = std::find_if(endings.begin(), endings.end(),
                                     [](const ExitStatus& ending) { return ending.is_answer(); });
  if (reporter - endings.begin() == bootstrap.rank()) log_exit_statuses(endings);
  if (mine.code != 0 && mine.code == root_cause(endings)) write_torchelastic_error(mine);
  return root_cause(endings);
}

}  // namespace

// Warns of more threads than cores: waiting threads then slow down many times.
void warn_about_threads(int local_size) {
  const int threads = at::get_num_threads();
  const auto allowed = static_cast<int>(allowed_cores().size());
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = allowed < online;  // each process then has cores of its own
  if (threads * (bound ? 1 : local_size) <= allowed) return;
  const int each = std::max(1, allowed / (bound ? 1 : local_size));
  const std::string fewer_threads = threads > each ? concat(" or set OMP_NUM_THREADS=", each) : "";
  log(LogLevel::kInfo, local_size, " rank(s) of ", threads, " thread(s) on this host share ",
      allowed, bound ? " core(s) each" : " core(s)",
      ": they take turns, which is slow; start fewer ranks", fewer_threads);
}

ProcessJob::ProcessJob() : bootstrap_(make_bootstrap()) {
  if (bootstrap_->size() > 1) set_log_rank(bootstrap_->rank());
}

void ProcessJob::connect(const JobOptions& options) {
  world_ = bootstrap_->connect(options.transport);
  warn_about_one_core(*world_);
  share_cores(bootstrap_->launch().local_size);
  if (world_->rank() == 0) warn_about_threads(bootstrap_->launch().local_size);
  if (options.debug_collectives) world_ = check_collectives(std::move(world_));
}

int ProcessJob::conclude(const ExitStatus& mine) {
  if (!code_) code_ = conclude_with(*bootstrap_, mine);
  return *code_;
}

}  // namespace tessera
