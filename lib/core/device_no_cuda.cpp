// SPDX-License-Identifier: MIT
// Device functions of builds without CUDA.
#include "lib/core/device_driver.h"
#include "lib/core/device_graph.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {

std::string device_name(at::Device) { return "CPU"; }

std::string pci_address(at::Device) { return ""; }

std::string pin_pages(void*, size_t) { return "this build has no CUDA"; }
void unpin_pages(void*) {}

// --- Graphs: none.
struct DeviceGraph::State {};

DeviceGraphPool make_graph_pool(at::Device device) { return {current_stream(device), {}}; }

void give_back(const DeviceGraphPool&) {}

bool DeviceGraph::can_record(at::Device) { return false; }

DeviceGraph::DeviceGraph(const DeviceGraphPool&, const std::function<void()>&) {
  fail(ErrorCode::kUnavailable, "this build has no CUDA, and so nothing that records work");
}

DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::run() const {}

}  // namespace tessera
