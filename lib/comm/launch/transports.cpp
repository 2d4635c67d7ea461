// SPDX-License-Identifier: MIT
#include "lib/comm/launch/transports.h"

#include <array>

#include "lib/comm/mpi/mpi_transport.h"
#include "lib/comm/nccl/nccl_transport.h"
#include "lib/comm/tcp/tcp_transport.h"
#include "tessera/comm/local.h"

namespace tessera {
namespace {

std::string local_unusable(const LaunchInfo& launch) {
  return launch.world_size == 1 ? "" : "the local transport connects threads of one process only";
}

std::unique_ptr<Communicator> connect_local(const TransportContext&) {
  return std::move(make_local_world(1).front());
}

std::string own_library() { return ""; }

constexpr Transport kTransports[] = {
#ifdef TESSERA_HAS_NCCL
    {"nccl", nccl::unusable_because, nccl::connect, nccl::library},
#endif
    {"local", local_unusable, connect_local, own_library},
#ifdef TESSERA_HAS_MPI
    {"mpi", mpi::unusable_because, mpi::connect, mpi::library},
#endif
    {"tcp", tcp::unusable_because, tcp::connect, own_library},
};

}  // namespace

std::span<const Transport> transports() { return kTransports; }

RendezvousExchange rendezvous_over_mpi(const LaunchInfo& launch) {
#ifdef TESSERA_HAS_MPI
  if (mpi::belongs_to(launch)) return mpi::exchange_rendezvous;
#endif
  static_cast<void>(launch);
  return nullptr;
}

void close_transports(bool clean) {
#ifdef TESSERA_HAS_MPI
  mpi::close(clean);
#endif
}

}  // namespace tessera
