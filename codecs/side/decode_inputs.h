// SPDX-License-Identifier: Apache-2.0
#pragma once
// The side objects that coding may need. Borrowed for the call.
//
// Thread-safety: a value.

namespace cairn::codecs {

class Bank;
class Profile;

// The side object that the image names, if its recipe needs one. Other members are null.
struct DecodeInputs {
  const Profile* profile = nullptr;
  const Bank* bank = nullptr;
};

}  // namespace cairn::codecs
