// SPDX-License-Identifier: Apache-2.0
#include "service/daemon.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_room.h"
#include "base/status.h"
#include "service/codec/device_codec.h"
#include "service/daemon_options.h"
#include "service/limits.h"
#include "service/memory_needs.h"
#include "service/process.h"
#include "service/used_blocks.h"
#include "transport/local/server.h"
#include "transport/stream/server.h"
#include "transport/ucx_module.h"

namespace cairn {
namespace {

constexpr absl::Duration kDrainStep = absl::Milliseconds(10);
constexpr absl::Duration kOldArenaWait = absl::Seconds(5);
constexpr absl::Duration kOldArenaStep = absl::Milliseconds(50);

}  // namespace

std::string_view DaemonVersion() { return CAIRN_VERSION; }

Daemon::Daemon(const Config& config, Machine machine)
    : config_(config),
      machine_(std::move(machine)),
      side_objects_(
          {.bytes_max = limits::kSideObjectsBytesMax, .count_max = limits::kSideObjectsMax}),
      query_squares_(limits::kQuerySquaresBytesMax),
      spaces_(RecipeOf(config),
              {.side_objects = side_objects_,
               .query_squares = query_squares_,
               .clock = clock_,
               .has_blocks = [this](uint64_t id) { return index_->figures(id).block_count > 0; },
               .made = [this](uint64_t id,
                              std::string_view tenant) { index_->events().AddSpace(id, tenant); },
               .gone = [this](uint64_t id) { index_->events().RemoveSpace(id); },
               .known_policy = [this](const SpaceEntry& space) { return KnownPolicy(space); }}),
      sessions_({.release_leases =
                     [this](uint64_t id) {
                       index_->EndSession(id);
                       if (remote_ != nullptr) remote_->EndSession(id);
                     },
                 .break_peer =
                     [this](const PeerRef& peer) {
                       data_servers_.at(static_cast<size_t>(peer.server))->BreakPeer(peer);
                     }},
                PeersMax(config)) {}

Daemon::~Daemon() { Stop(); }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, Machine machine) {
  auto daemon = std::unique_ptr<Daemon>(new Daemon(config, std::move(machine)));
  const absl::Status status = daemon->StartAll();
  if (!status.ok()) return status;
  return daemon;
}

absl::Status Daemon::LoadPolicy() {
  if (config_.audit != "off") {
    CAIRN_ASSIGN_OR_RETURN(audit_, Audit::Open(config_.audit));
    sessions_.SetOtherBearerNote([this](const PeerIdentity& peer, std::string_view tenant) {
      audit_->TicketRefused(peer, tenant);
    });
  }
  maps_arena_ = MapsArena(config_);
  if (config_.policy == "off") return absl::OkStatus();
  // The memory must not be mapped if tenants must be kept apart.
  auto loaded = PolicyWatch::Open(config_.policy, /*keeps_tenants_apart=*/config_.map != "on",
                                  DoorsOf(config_));
  if (!loaded.ok()) return Annotate(loaded.status(), "policy");
  policy_ = *std::move(loaded);
  sessions_.SetPolicy(*policy_);
  if (audit_ != nullptr) audit_->Policy(absl::OkStatus());
  maps_arena_ = maps_arena_ && !policy_->has_many_tenants();
  policy_->SetKeepsTenantsApart(!maps_arena_);
  return absl::OkStatus();
}

absl::Status Daemon::StartTls() {
  const std::optional<transport::TlsPaths> paths = TlsOf(config_);
  if (!paths.has_value()) return absl::OkStatus();
  auto files = transport::TlsFiles::Open(*paths, transport::TlsRole::kServer);
  if (!files.ok()) return Annotate(files.status(), "tls");
  tls_ = *std::move(files);
  tls_generation_ = tls_->generation();
  handshakes_ = std::make_unique<transport::Handshakes>(*tls_, transport::HandshakeLimits());
  if (audit_ != nullptr) {
    audit_->Tls(absl::OkStatus());
    handshakes_->SetRefusedNote([this](const transport::Handshakes::Refused& refused) {
      audit_->HandshakeRefused(refused.door, refused.address, refused.certificate, refused.reason,
                               refused.why);
    });
  }
  handshakes_->Start();
  LogInfo("daemon", "TLS", {{"certificate", tls_->own_certificate()}});
  return absl::OkStatus();
}

void Daemon::Look() {
  doors_.Look();
  if (remote_ != nullptr) remote_->Look();
  if (tls_ != nullptr) {
    tls_->Look();
    const uint64_t generation = tls_->generation();
    const bool is_new = std::exchange(tls_generation_, generation) != generation;
    if (is_new) control_->EndRevoked();
    if (is_new && peer_server_ != nullptr) peer_server_->EndRevoked();
    // A handshake looks at the files as well, so what it found is compared with what was audited.
    std::string refusal = tls_->refusal();
    const bool is_refused = !refusal.empty() && (is_new || refusal != tls_refusal_);
    if (audit_ != nullptr && is_new) audit_->Tls(absl::OkStatus());
    if (audit_ != nullptr && is_refused) audit_->Tls(absl::InvalidArgumentError(refusal));
    tls_refusal_ = std::move(refusal);
  }
  if (audit_ != nullptr) audit_->Look();
  if (policy_ == nullptr) return;
  const std::string remark = policy_->remark();
  const bool is_new = policy_->Look();
  if (audit_ != nullptr && is_new) audit_->Policy(absl::OkStatus());
  if (const std::string now = policy_->remark();
      audit_ != nullptr && !now.empty() && now != remark) {
    audit_->Policy(absl::InvalidArgumentError(now));
  }
  if (!is_new) return;
  const size_t ended = sessions_.EndRefused().size();
  if (ended > 0) LogWarn("policy", "sessions ended: no longer allowed", {{"sessions", ended}});
}

absl::Status Daemon::StartAll() {
  CAIRN_RETURN_IF_ERROR(LoadPolicy());
  MemoryRoom room = FindMemoryRoom();
  // The clients of a dead daemon unmap its memory as soon as they notice its death.
  for (absl::Duration waited; !CheckMemoryRoom(config_, room).ok() &&
                              MayWaitForRoom(config_, room) && waited < kOldArenaWait;
       waited += kOldArenaStep) {
    absl::SleepFor(kOldArenaStep);
    room = FindMemoryRoom();
  }
  CAIRN_RETURN_IF_ERROR(CheckMemoryRoom(config_, room));
  if (const std::string warning = MemoryWarning(config_, room); !warning.empty()) {
    LogWarn("daemon", "memory is short", {{"reason", warning}});
  }
  CAIRN_RETURN_IF_ERROR(StartProbes());
  CAIRN_RETURN_IF_ERROR(StartStore());
  pool_ = std::make_unique<PathPool>(static_cast<int>(config_.path_threads));
  puts_ = std::make_unique<Puts>(spaces_, sessions_, *index_, *tiers_, *pool_, clock_);
  gets_ = std::make_unique<Gets>(spaces_, *index_, *tiers_, *pool_, clock_);
  upkeep_ = std::make_unique<Upkeep>(
      spaces_, *index_, *tiers_, clock_,
      Upkeep::Options{.scrub_rate_bytes = ScrubRateOf(config_),
                      .write_budget_bytes = WriteBudgetOf(config_, *tiers_),
                      .device = codec_.get()});
  puts_->SetDevice(codec_.get());
  gets_->SetDevice(codec_.get());
  puts_->SetAwaitDurable(upkeep_->await_durable());
  gets_->SetNoteRead(upkeep_->note_read());
  index_->SetWake([this] { upkeep_->Wake(); });
  if (config_.socket != "off") CAIRN_RETURN_IF_ERROR(StartLocal());
  if (config_.stream.enabled()) CAIRN_RETURN_IF_ERROR(StartStream());
  if (config_.data.enabled()) CAIRN_RETURN_IF_ERROR(StartUcx());
  CAIRN_RETURN_IF_ERROR(CheckEtcd(config_));
  members_ = MembersOf(config_, clock_);
  StartRemote();
  upkeep_->SetTurns(shared_profiles_.get());
  upkeep_->Start();  // no session can be open yet
  StartServices();
  if (members_ != nullptr) CAIRN_RETURN_IF_ERROR(StartMembers());
  is_started_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Daemon::StartProbes() {
  if (config_.http.enabled()) {
    CAIRN_ASSIGN_OR_RETURN(
        metrics_,
        MetricsServer::Start(config_.http, {.report = [this](MetricSink& sink) { Report(sink); },
                                            .readiness = [this] { return Readiness(); },
                                            .remarks = [this] { return Remarks(); }}));
  }
  CAIRN_RETURN_IF_ERROR(StartTls());
  const ControlAddress control = ControlOf(config_);
  CAIRN_ASSIGN_OR_RETURN(control_, ControlServer::Start(control, AdminOf(config_), SlowOf(config_),
                                                        handshakes_.get(), DoorsOf(config_)));
  control_->AddTo(doors_);
  LogInfo("daemon", "starting: probes are answered",
          {{"control", control_->address().ToString()},
           {"admin", control_->admin_address()},
           {"http", metrics_ == nullptr ? "off" : metrics_->address().ToString()}});
  return absl::OkStatus();
}

transport::ServerLimits Daemon::TransportLimits() const {
  transport::ServerLimits limits;
  limits.lanes = static_cast<int>(config_.lanes);
  limits.peers_max = static_cast<int>(config_.connections);
  limits.payload_bytes_max = limits::kTransferBytesMax;
  limits.region_bytes_max = config_.region_bytes;
  limits.regions_bytes_max = config_.regions_bytes;
  limits.quarantine_bytes_max = config_.quarantine_bytes;
  return limits;
}

DataServer& Daemon::AddDataServer(std::string_view transport_label) {
  data_servers_.push_back(std::make_unique<DataServer>(
      DataServer::Parts{*puts_, *gets_, sessions_, clock_},
      DataServer::Options{
          .server = static_cast<int>(data_servers_.size()),
          .transport_label = transport_label,
          .lanes = static_cast<int>(config_.lanes),
          .window = static_cast<uint32_t>(config_.window),
          .regions_bytes_max = transport_label == "local" ? config_.regions_bytes : 0,
          .lent_host_bytes = transport_label == "local" && tiers_->host().arena().shared_fd() >= 0
                                 ? tiers_->host().capacity_bytes()
                                 : 0,
          .lent_staging_bytes = tiers_->host().staging_capacity_bytes(),
          .slow = SlowOf(config_)}));
  return *data_servers_.back();
}

absl::Status Daemon::StartLocal() {
  const Arena& arena = tiers_->host().arena();
  std::vector<transport::DoorSocket> doors;
  for (const std::string& folder : DoorsOf(config_)) {
    doors.push_back({.door = folder, .path = DoorDataPath(folder)});
  }
  auto server = transport::StartLocalServer({.path = config_.socket,
                                             .limits = TransportLimits(),
                                             .shared = arena.mapping(),
                                             .shared_fd = arena.shared_fd(),
                                             .doors = std::move(doors)},
                                            AddDataServer("local"));
  if (!server.ok()) return Annotate(server.status(), "socket");
  LogInfo("daemon", "gets of clients on this host", {{"are", local_gets_}});
  local_address_ = (*server)->address();
  doors_.Add("socket", [kept = server->get()] { return kept->KeepAddress(); });
  transports_.push_back(*std::move(server));
  return absl::OkStatus();
}

absl::Status Daemon::StartStream() {
  auto server = transport::StartStreamServer(
      {.host = config_.stream.host, .port = config_.stream.port, .limits = TransportLimits()},
      *handshakes_, AddDataServer("stream"));
  if (!server.ok()) return Annotate(server.status(), "stream");
  stream_address_ = (*server)->address();
  LogInfo("daemon", "data plane over TLS", {{"stream", stream_address_}});
  transports_.push_back(*std::move(server));
  return absl::OkStatus();
}

absl::Status Daemon::StartUcx() {
  CAIRN_ASSIGN_OR_RETURN(transport::UcxModule * module, transport::LoadUcxModule());
  transport::UcxServerOptions options;
  options.host = config_.data.host;
  options.port = config_.data.port;
  if (config_.data_port_range != "any") options.port_range = config_.data_port_range;
  options.limits = TransportLimits();
  auto server = module->StartServer(options, AddDataServer("ucx"));
  if (!server.ok()) return Annotate(server.status(), "data");
  ucx_address_ = (*server)->address();
  transports_.push_back(*std::move(server));
  LogWarn("daemon",
          "*** THE UCX DATA PORT IS A TRUST BOUNDARY: ANYONE WHO CAN CONNECT TO IT CAN CRASH THIS "
          "PROCESS OR WRITE ITS MEMORY. NO SETTING PREVENTS THAT: RESTRICT ACCESS. ***",
          {{"data", ucx_address_}});
  return absl::OkStatus();
}

void Daemon::StartServices() {
  SessionTerms terms;
  for (const std::string& address : {local_address_, stream_address_, ucx_address_}) {
    if (!address.empty()) terms.data_addresses.push_back(address);
  }
  terms.local_address = local_address_;
  terms.daemon_version = DaemonVersion();
  if (metrics_ != nullptr) terms.http_address = metrics_->address().ToString();
  if (AdminOf(config_).has_value()) terms.admin_address = control_->admin_address();
  terms.local_gets = local_gets_;
  terms.payload_bytes_max = limits::kTransferBytesMax;
  terms.is_draining = [this] { return is_draining(); };
  terms.audit = audit_.get();
  if (members_ != nullptr) {
    terms.member_name = members_->self();
    terms.cluster = members_->cluster();
  }
  store_service_ = std::make_unique<StoreService>(
      StoreService::Parts{spaces_, sessions_, *index_, *tiers_, gets_->prefetches(), clock_,
                          remote_.get(), whereabouts_.get(), generations_.get()},
      std::move(terms));
  admin_service_ = std::make_unique<AdminService>(AdminService::Parts{
      spaces_, sessions_, *index_, *upkeep_, *tiers_, store_service_->freed(),
      [this] { BeginDrain(); }, tiers_->Find(TierId::kGpu) == nullptr ? codec_.get() : nullptr,
      audit_.get(), members_.get(), config_.members, policies_.get(), policy_teller_.get()});
  control_->Serve(*store_service_, *admin_service_);
}

void Daemon::StartRemote() {
  if (members_ == nullptr) return;
  MakeLocations();
  policy_teller_ = std::make_unique<PolicyTeller>(
      PolicyTeller::Parts{*members_, *peers_, std::string(DaemonVersion()), MayUse()});
  std::optional<PeerReader::Options> options = PeerReaderOf(config_, members_->self());
  if (!options.has_value()) {
    LogWarn("daemon", "blocks are not shared with members: set tls-cert and stream, or data (UCX)");
    return;
  }
  peer_reader_ = std::make_unique<PeerReader>(*std::move(options));
  remote_ = std::make_unique<RemoteBlocks>(
      RemoteBlocks::Parts{spaces_, *index_, *puts_, *members_, *locator_, *peer_reader_,
                          *generations_, clock_, MayUse()},
      RemoteBlocks::Options{.match_time =
                                absl::Milliseconds(static_cast<int64_t>(config_.peer_match_ms))});
  whereabouts_ =
      std::make_unique<Whereabouts>(Whereabouts::Parts{*members_, *locator_, *peer_reader_});
  MakeOffers();
  profile_calls_ = std::make_unique<ProfileCalls>(
      ProfileCalls::Parts{*members_, *peers_, std::string(DaemonVersion())});
  shared_profiles_ = std::make_unique<SharedProfiles>(SharedProfiles::Parts{
      spaces_, *members_, *profile_calls_, *peer_reader_, clock_, MayUse(),
      [this](const SpaceEntry& space, uint16_t group) {
        return Mining::HasEnough(space, group, index_->figures(space.id()).source_bytes);
      }});
  gets_->SetFetch([this](const Request& request, const proto::Get& get, const codecs::Slice& slice,
                         std::function<void()> done) {
    return remote_->Fetch(request, get, slice, std::move(done));
  });
}

void Daemon::MakeOffers() {
  offered_ = std::make_unique<OfferedBlocks>(OfferedBlocks::Parts{
      sessions_, spaces_, *index_, tiers_->host(), *peer_reader_, *remote_, clock_});
  const auto collect = [this] {
    const int64_t now = absl::ToUnixSeconds(clock_.Now());
    return CollectUsed(*index_, spaces_, static_cast<uint32_t>(now - limits::kOfferedUsedSeconds),
                       limits::kOfferedBlocksMax);
  };
  offers_ = std::make_unique<Offers>(
      Offers::Parts{*members_, DialOfMembers(), std::string(DaemonVersion()), collect, MayUse(),
                    [this] { sessions_.RefuseNew(); }},
      Offers::Options{
          .plan = {.keys_max = limits::kOfferKeysMax, .bytes_max = limits::kOfferBytesMax},
          .call_time = absl::Milliseconds(limits::kOfferMs),
          .calls_max = limits::kOfferCallsMax});
}

PeerDial Daemon::DialOfMembers() {
  return {.tls = tls_.get(), .may_be_member = [this](const PeerIdentity& identity) {
            return sessions_.policy().MayBeMember(identity);
          }};
}

std::function<bool(const PeerIdentity&, std::string_view)> Daemon::MayUse() {
  return [this](const PeerIdentity& identity, std::string_view tenant) {
    return sessions_.policy().MayUse(identity, tenant).ok();
  };
}

void Daemon::MakeLocations() {
  peers_ = std::make_unique<PeerChannels>(DialOfMembers(), limits::kControlMessageBytesMax);
  locations_ = std::make_unique<LocationTable>(config_.location_bytes);
  announced_ = std::make_unique<Announced>(*locations_);
  announced_blocks_ = std::make_unique<AnnouncedBlocks>(*index_, spaces_);
  announcer_ = std::make_unique<Announcer>(Announcer::Parts{
      *members_, *peers_, *announced_, *announced_blocks_, std::string(DaemonVersion())});
  locator_ = std::make_unique<Locator>(
      Locator::Parts{*members_, *peers_, *locations_, std::string(DaemonVersion())},
      Locator::Options());
}

absl::Status Daemon::StartMembers() {
  Hellos::Options options;
  options.daemon_version = DaemonVersion();
  options.dial = DialOfMembers();
  options.generations = generations_.get();
  options.policies = policies_.get();
  options.may_use = MayUse();
  hellos_ = std::make_unique<Hellos>(*members_, std::move(options));
  peer_service_ = std::make_unique<PeerService>(PeerService::Parts{
      *members_, sessions_, store_service_.get(), std::string(DaemonVersion()),
      [this](std::string_view name) { hellos_->Greet(name); }, *announced_, *locations_,
      generations_.get(), policies_.get(), offered_.get(), shared_profiles_.get()});
  auto server =
      ControlServer::Start({.tcp = config_.peer, .path = {}}, std::nullopt, SlowOf(config_),
                           handshakes_.get(), {}, ControlServer::Callers::kMembers);
  if (!server.ok()) return Annotate(server.status(), "peer");
  peer_server_ = *std::move(server);
  peer_server_->Serve(*peer_service_);
  hellos_->Start();
  members_->Start([this] {
    hellos_->Wake();
    announcer_->Wake();
  });
  announcer_->Start();
  LogInfo("daemon", "member of a cluster",
          {{"cluster", members_->cluster()},
           {"name", members_->self()},
           {"peer", peer_server_->address().ToString()}});
  return absl::OkStatus();
}

// --- Readiness -----------------------------------------------------------------------------------

void Daemon::SetStep(std::string_view step) {
  const MutexLock lock(step_mutex_);
  step_ = step;
}

std::string Daemon::Step() const {
  {
    const MutexLock lock(step_mutex_);
    if (!step_.empty()) return step_;
  }
  uint64_t images = 0, found = 0;
  const std::vector<DeviceReport> devices = Devices();
  for (const DeviceReport& device : devices) {
    images += device.image_count;
    found += device.state != DeviceState::kRecovering ? 1 : 0;
  }
  return absl::StrCat("recovering: ", images, " images, ", found, " of ", devices.size(),
                      " devices");
}

absl::Status Daemon::Readiness() const {
  if (is_draining()) return absl::UnavailableError("draining");
  if (!is_started_.load(std::memory_order_acquire)) return absl::UnavailableError(Step());
  CAIRN_RETURN_IF_ERROR(doors_.state());
  return control_->Probe();
}

std::vector<DeviceReport> Daemon::Devices() const {
  std::vector<DeviceReport> devices = tiers_->Devices();
  if (codec_ == nullptr) return devices;
  const DeviceReport coding = codec_->Device();
  const auto of_tier = std::ranges::find(devices, coding.path, &DeviceReport::path);
  if (of_tier == devices.end()) {
    devices.push_back(coding);
  } else {
    of_tier->transfer_count += coding.transfer_count;
  }
  return devices;
}

std::string Daemon::Remarks() const {
  std::string remarks;
  if (audit_ != nullptr) {
    if (const std::string remark = audit_->remark(); !remark.empty()) {
      absl::StrAppend(&remarks, remark, "\n");
    }
  }
  if (tls_ != nullptr) {
    if (const std::string remark = tls_->remark(); !remark.empty()) {
      absl::StrAppend(&remarks, remark, "\n");
    }
  }
  if (policy_ != nullptr) {
    if (const std::string remark = policy_->remark(); !remark.empty()) {
      absl::StrAppend(&remarks, remark, "\n");
    }
    for (const std::string& warning : policy_->warnings()) {
      absl::StrAppend(&remarks, warning, "\n");
    }
  }
  if (is_started_.load(std::memory_order_acquire) && members_ != nullptr) {
    if (const std::string remark = members_->remark(); !remark.empty()) {
      absl::StrAppend(&remarks, remark, "\n");
    }
  }
  for (const DeviceReport& device : Devices()) {
    if (device.state != DeviceState::kOk) {
      absl::StrAppend(&remarks, device.path, " is ", ToAbsl(Name(device.state)), ": ",
                      device.reason, "\n");
    }
  }
  return remarks;
}

std::string Daemon::ReadyLine() const {
  const auto shown = [](const std::string& address) { return address.empty() ? "off" : address; };
  constexpr std::string_view kUnix = "unix:";
  const std::string socket =
      local_address_.starts_with(kUnix) ? local_address_.substr(kUnix.size()) : local_address_;
  return absl::StrCat("cairnd ready control=", control_->address().ToString(),
                      " http=", metrics_ == nullptr ? "off" : metrics_->address().ToString(),
                      " socket=", shown(socket), " data=", shown(ucx_address_),
                      " admin=", control_->admin_address(),
                      peer_server_ == nullptr
                          ? std::string()
                          : absl::StrCat(" peer=", peer_server_->address().ToString()));
}

void Daemon::BeginDrain() {
  if (is_draining_.exchange(true, std::memory_order_relaxed)) return;
  LogInfo("daemon", "draining: no new sessions and puts", {{"sessions", sessions_.count()}});
  sessions_.RefuseNew(/*but_members=*/offers_ != nullptr);  // they read what they are offered
  puts_->RefuseNew();
  control_->SetServing(false);
  if (members_ != nullptr) {
    members_->Meet(
        {.name = members_->self(), .incarnation = members_->incarnation(), .is_draining = true});
    if (hellos_ != nullptr) hellos_->GreetAll();
  }
  if (offers_ != nullptr) {
    offers_->Begin(MonotonicNow() + absl::Milliseconds(config_.drain_ms));
  }
  upkeep_->Wake();  // it writes down what is left
}

uint64_t Daemon::LeasesOfClients() const {
  std::vector<uint64_t> members;
  for (const Sessions::Info& session : sessions_.List()) {
    if (session.is_member) members.push_back(session.id);
  }
  return index_->lease_count_without(members);
}

Daemon::Drained Daemon::AwaitDrained() {
  const absl::Time deadline = clock_.Now() + absl::Milliseconds(config_.drain_ms);
  uint64_t last_unwritten = 0;
  // The time of the last completed write, request or lease.
  absl::Time moved = clock_.Now();
  while (true) {  // until the deadline
    int64_t in_flight = 0;
    for (const auto& server : data_servers_) in_flight += server->in_flight();
    const uint64_t unwritten = upkeep_->unwritten_count();
    const absl::Time now = clock_.Now();
    const bool is_offering = offers_ != nullptr && !offers_->is_over();
    const uint64_t leases = LeasesOfClients();
    const bool is_waited_for = in_flight > 0 || leases > 0 || is_offering;
    if (!is_waited_for && unwritten == 0) return Drained::kAll;
    if (is_waited_for || unwritten != last_unwritten) moved = now;
    last_unwritten = unwritten;
    const bool is_stalled = now - moved >= absl::Milliseconds(limits::kDrainStallMs);
    if (is_stalled || now >= deadline) {
      LogWarn(
          "daemon", is_stalled ? "no more writes complete" : "drain time is over with work left",
          {{"requests", in_flight}, {"leases", leases}, {"images_not_written_down", unwritten}});
      return is_stalled ? Drained::kStalled : Drained::kLate;
    }
    absl::SleepFor(kDrainStep);
  }
}

void Daemon::Stop() {
  if (std::exchange(is_stopped_, true)) return;
  sessions_.RefuseNew();
  if (metrics_ != nullptr) metrics_->Stop();
  for (const Sessions::Info& session : sessions_.List()) sessions_.End(session.id);
  if (offers_ != nullptr) offers_->Stop();
  if (offered_ != nullptr) offered_->Stop();
  if (shared_profiles_ != nullptr) shared_profiles_->Stop();
  if (policy_teller_ != nullptr) policy_teller_->Stop();
  if (remote_ != nullptr) remote_->Stop();  // answers what waits for members
  if (whereabouts_ != nullptr) whereabouts_->Stop();
  if (peer_reader_ != nullptr) peer_reader_->Stop();
  if (store_service_ != nullptr) store_service_->Stop();
  if (control_ != nullptr) control_->Stop();
  if (admin_service_ != nullptr) admin_service_->Stop();
  if (peer_server_ != nullptr) peer_server_->Stop();
  if (members_ != nullptr) members_->Stop();
  if (hellos_ != nullptr) hellos_->Stop();
  if (announcer_ != nullptr) announcer_->Stop();
  if (handshakes_ != nullptr) handshakes_->Stop();
  for (const auto& server : transports_) server->Stop();
  if (gets_ != nullptr) gets_->Stop();
  if (codec_ != nullptr) codec_->Stop();  // the pool does the work that falls back
  if (pool_ != nullptr) pool_->Stop();
  if (upkeep_ != nullptr) upkeep_->Stop();
  if (tiers_ != nullptr)
    tiers_->Stop();  // images that the index frees from now on stay for the next process
}

void Daemon::ReportParts(MetricSink& sink) const {
  tiers_->Report(sink);
  if (codec_ != nullptr) codec_->Report(sink);
  if (codec_ != nullptr && tiers_->Find(TierId::kGpu) == nullptr) {
    ReportGpuState(codec_->Device().state, sink);
  }
  index_->Report(sink);
  restorer_->Report(sink);
  sessions_.Report(sink);
  if (policy_ != nullptr) policy_->Report(sink);
  if (audit_ != nullptr) audit_->Report(sink);
  if (members_ != nullptr) members_->Report(sink);
  if (hellos_ != nullptr) hellos_->Report(sink);
  if (generations_ != nullptr) generations_->Report(sink);
  if (policies_ != nullptr) policies_->Report(sink);
  if (shared_profiles_ != nullptr) shared_profiles_->Report(sink);
  if (remote_ != nullptr) remote_->Report(sink);
  if (offered_ != nullptr) offered_->Report(sink);
  if (offers_ != nullptr) offers_->Report(sink);
  if (peer_service_ != nullptr) peer_service_->Report(sink);
  if (locations_ != nullptr) locations_->Report(sink);
  if (announcer_ != nullptr) announcer_->Report(sink);
  if (tls_ != nullptr) tls_->Report(sink);
  if (handshakes_ != nullptr) handshakes_->Report(sink);
  spaces_.Report(sink);
  side_objects_.Report(sink);
  query_squares_.Report(sink);
  puts_->Report(sink);
  gets_->Report(sink);
  pool_->Report(sink);
  upkeep_->Report(sink);
  for (const auto& server : data_servers_) server->Report(sink);
  for (const auto& server : transports_) server->Report(sink);
  store_service_->Report(sink);
  admin_service_->Report(sink);
  control_->Report(sink);
  doors_.Report(sink);
}

void Daemon::Report(MetricSink& sink) const {
  ReportLog(sink);
  if (is_started_.load(std::memory_order_acquire)) ReportParts(sink);
  const MetricLabel version{"version", DaemonVersion()};
  sink.AddGauge("cairn_build_info", "1, labelled with the version.", {&version, 1}, 1);
  sink.AddGauge("cairn_uptime_seconds", "Time since the start of the daemon.", {},
                absl::ToDoubleSeconds(clock_.Now() - started_));
  sink.AddGauge("cairn_draining_state", "1 while the daemon refuses new sessions and puts.", {},
                is_draining() ? 1 : 0);
  ReportProcess(sink);
}

}  // namespace cairn
