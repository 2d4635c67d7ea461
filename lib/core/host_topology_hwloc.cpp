// SPDX-License-Identifier: MIT
// Topology of builds with hwloc.
#include <hwloc.h>

#include <memory>

#include "lib/core/host_topology.h"

namespace tessera {
namespace {

struct Free {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
  void operator()(hwloc_bitmap_t set) const { hwloc_bitmap_free(set); }
};
using Topology = std::unique_ptr<hwloc_topology, Free>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, Free>;

// Null when the system gives no topology.
Topology load_topology(const std::string& xml) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (!xml.empty() && hwloc_topology_set_xml(raw, xml.c_str()) != 0) return nullptr;
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

const Topology& this_machine() {
  static const Topology topology = load_topology("");
  return topology;
}

Bitmap set_of(const std::vector<int>& cores) {
  Bitmap set(hwloc_bitmap_alloc());
  for (int core : cores) hwloc_bitmap_set(set.get(), static_cast<unsigned>(core));
  return set;
}

// The set's cores in topology order: threads of a core and cores of a cache adjacent.
std::vector<int> in_order(hwloc_topology_t topology, hwloc_const_cpuset_t set) {
  std::vector<int> cores;
  hwloc_obj_t unit = nullptr;
  while ((unit = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, unit)) != nullptr) {
    if (hwloc_bitmap_isset(set, unit->os_index)) cores.push_back(static_cast<int>(unit->os_index));
  }
  return cores;
}

}  // namespace

std::vector<int> cores_near_pci(const std::string& pci_address, const std::vector<int>& cores,
                                const std::string& xml) {
  const Topology own = xml.empty() ? nullptr : load_topology(xml);
  hwloc_topology_t topology = xml.empty() ? this_machine().get() : own.get();
  if (topology == nullptr) return cores;
  const Bitmap near = set_of(cores);
  hwloc_obj_t device = pci_address.empty()
                           ? nullptr
                           : hwloc_get_pcidev_by_busidstring(topology, pci_address.c_str());
  if (device != nullptr) {
    const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
    if (hwloc_bitmap_intersects(near.get(), place->cpuset)) {
      hwloc_bitmap_and(near.get(), near.get(), place->cpuset);
    }
  }
  const std::vector<int> ordered = in_order(topology, near.get());
  return ordered.empty() ? cores : ordered;
}

void place_memory(void* data, size_t bytes, const std::vector<int>& cores) {
  const Topology& topology = this_machine();
  if (topology == nullptr || cores.empty() || bytes == 0) return;
  if (hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE) < 2) return;
  // A preference: without HWLOC_MEMBIND_STRICT full nodes fall back to others.
  hwloc_set_area_membind(topology.get(), data, bytes, set_of(cores).get(), HWLOC_MEMBIND_BIND, 0);
}

}  // namespace tessera
