#pragma once
/// \file
/// What a client hands over, checked before it is used.

#include <memory>
#include <string>

#include "sluice/client_words.h"

namespace sluice::client {

/// Maps a client's page.
/// \param why on failure, a sentence for the client.
/// \return nullptr when it is not what it must be: memory whose size nobody can change.
std::shared_ptr<sluice_client_words> map_client_page(int fd, std::string& why);
bool is_eventfd(int fd) noexcept;

}  // namespace sluice::client
