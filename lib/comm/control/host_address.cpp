// SPDX-License-Identifier: MIT
// Choice of the address under which other hosts reach this one.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lib/comm/control/socket.h"
#include "lib/core/host_name.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

struct Interface {
  std::string name;
  std::string address;
};

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Interfaces that are up, IPv4 first; no loopback, no link-local addresses.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
      const std::string address =
          numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (!address.empty() && address.find('%') == std::string::npos) {
        found.push_back({i->ifa_name, address});
      }
    }
  }
  return found;
}

std::vector<std::string> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    addresses.push_back(numeric(a->ai_addr, a->ai_addrlen));
  }
  return addresses;
}

// The address of `all` that the name resolves to; "" for none.
std::string ours(const std::string& name, const std::vector<Interface>& all) {
  const std::vector<std::string> addresses = addresses_of(name);
  for (const Interface& each : all) {
    if (std::find(addresses.begin(), addresses.end(), each.address) != addresses.end()) {
      return each.address;
    }
  }
  return "";
}

}  // namespace

std::string local_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return numeric(reinterpret_cast<const sockaddr*>(&address), length);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

bool resolves_to_loopback(const std::string& host) {
  const std::vector<std::string> addresses = addresses_of(host);
  return !addresses.empty() && std::all_of(addresses.begin(), addresses.end(), is_loopback);
}

std::string address_for_others(const std::string& hint) {
  const std::vector<Interface> all = interfaces();
  if (const char* named = std::getenv("TESSERA_HOST_ADDRESS")) {
    for (const Interface& each : all) {
      if (each.name == named) return each.address;
    }
    const std::vector<std::string> addresses = addresses_of(named);
    check(!addresses.empty(), ErrorCode::kInvalidArgument, "TESSERA_HOST_ADDRESS=", named,
          " is no interface of host ", host_name(), " and does not resolve to an address");
    return addresses.front();
  }
  for (const std::string& name : {hint, host_name()}) {
    if (name.empty()) continue;
    const std::string address = ours(name, all);
    if (!address.empty()) return address;
  }
  check(!all.empty(), ErrorCode::kInvalidArgument, "host ", host_name(),
        " has no address but loopback, which other hosts cannot reach; name one in "
        "TESSERA_HOST_ADDRESS");
  return all.front().address;
}

}  // namespace tessera::control
