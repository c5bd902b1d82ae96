// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses the header of a pinned image and compares it with the index's record. A CRC shows that
// bytes are as written, not that they are the requested ones: a tier that reads the wrong place
// finds a valid image of another block.

#include <cstddef>
#include <span>
#include "codecs/image/image.h"

#include "codecs/types/error.h"
#include "proto/block_key.h"
#include "service/index/pin.h"

namespace cairn {

// Checks that header and directory are those of the pinned copy. Errors: as ParsePinned().
codecs::Error CheckPinned(const CopyPin& pin, const codecs::ImagePrefix& prefix,
                          const proto::Fingerprint& space);

// Parses the image without verifying its tiles. `bytes` were read from the pinned copy: pin.bytes()
// if it is addressable. `space` is the fingerprint of the pin's space. Errors: those of
// codecs::ParseImage(); kMismatch if the header names another space, key, group, slice, token count
// or position than the pin's facts, or if header and directory are not the copy's; kNoProfile if it
// names another side object than the one that it was published with.
codecs::Error ParsePinned(const CopyPin& pin, std::span<const std::byte> bytes,
                          const proto::Fingerprint& space, codecs::ImageView* view);

}  // namespace cairn
