// SPDX-License-Identifier: MIT
#include "lib/core/host_topology.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "lib/core/host_threads.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// A core with two threads.
std::string core_xml(int index, int first, int second) {
  const auto bit = [](int thread) { return 1 << thread; };
  const auto sets = [](int mask) {
    char text[128];
    std::snprintf(text, sizeof(text), "cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\"", mask, mask);
    return std::string(text);
  };
  const std::string node = index < 2 ? "0x00000001" : "0x00000002";
  const std::string nodes = " nodeset=\"" + node + "\" complete_nodeset=\"" + node + "\"";
  const auto unit = [&](int thread) {
    return "<object type=\"PU\" os_index=\"" + std::to_string(thread) + "\" " + sets(bit(thread)) +
           nodes + " gp_index=\"" + std::to_string(100 + thread) + "\"/>";
  };
  return "<object type=\"Core\" os_index=\"" + std::to_string(index) + "\" " +
         sets(bit(first) | bit(second)) + nodes + " gp_index=\"" + std::to_string(50 + index) +
         "\">" + unit(first) + unit(second) + "</object>";
}

// Two packages of two cores with two threads, numbered as by Linux: thread 4 is core 0's second.
// One GPU per package.
std::string two_nodes_xml() {
  std::string xml =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\">"
      "<topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" cpuset=\"0x000000ff\" "
      "complete_cpuset=\"0x000000ff\" allowed_cpuset=\"0x000000ff\" nodeset=\"0x00000003\" "
      "complete_nodeset=\"0x00000003\" allowed_nodeset=\"0x00000003\" gp_index=\"1\">";
  for (int node = 0; node < 2; ++node) {
    const std::string number = std::to_string(node);
    const std::string cores = node == 0 ? "0x00000033" : "0x000000cc";
    const std::string nodes = node == 0 ? "0x00000001" : "0x00000002";
    const std::string sets = " cpuset=\"" + cores + "\" complete_cpuset=\"" + cores +
                             "\" nodeset=\"" + nodes + "\" complete_nodeset=\"" + nodes + "\"";
    xml += "<object type=\"Package\" os_index=\"" + number + "\"" + sets + " gp_index=\"1" +
           number + "\"><object type=\"NUMANode\" os_index=\"" + number + "\"" + sets +
           " gp_index=\"2" + number + "\" local_memory=\"1073741824\"/>";
    for (int core = 2 * node; core < 2 * node + 2; ++core) xml += core_xml(core, core, core + 4);
    xml += "<object type=\"Bridge\" gp_index=\"3" + number +
           "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + number + "0-" + number +
           "1]\"><object type=\"PCIDev\" gp_index=\"4" + number + "\" pci_busid=\"0000:" + number +
           "1:00.0\" pci_type=\"0302 [10de:2335] [10de:18be] a1\" "
           "pci_link_speed=\"0.0\"/></object></object>";
  }
  return xml + "</object></topology>";
}

}  // namespace

TEST_CASE("a GPU's cores are those of its NUMA node that the rank may use, threads side by side") {
  const TempDir dir;
  const std::string path = dir.write("machine.xml", two_nodes_xml());
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int> ordered{0, 4, 1, 5, 2, 6, 3, 7};
  if (cores_near_pci("", all, path) == all) return;  // a build without hwloc
  CHECK(cores_near_pci("0000:01:00.0", all, path) == std::vector<int>{0, 4, 1, 5});
  CHECK(cores_near_pci("0000:11:00.0", all, path) == std::vector<int>{2, 6, 3, 7});
  CHECK(cores_near_pci("0000:11:00.0", {1, 6, 7}, path) == std::vector<int>{6, 7});
  // Bound to the other package.
  CHECK(cores_near_pci("0000:11:00.0", {0, 1}, path) == std::vector<int>{0, 1});
  CHECK(cores_near_pci("0000:77:00.0", all, path) == ordered);  // no such device
  CHECK(cores_near_pci("", all, path) == ordered);
}

TEST_CASE("cores near the CPU are the allowed ones") {
  auto near = cores_near(at::kCPU);
  std::sort(near.begin(), near.end());
  CHECK(near == allowed_cores());
}
