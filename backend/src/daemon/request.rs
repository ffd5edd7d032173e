//! Request codes of the vhost-user protocol that this side has to know by name.

/// Virtio features that the front end uses.
pub(super) const SET_FEATURES: u32 = 2;
/// All memory regions at once.
pub(super) const SET_MEM_TABLE: u32 = 5;
/// Protocol features that the back end has.
pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
/// Protocol features that the front end uses.
pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
/// How many queues there are; pairs or rings, front ends differ.
pub(super) const GET_QUEUE_NUM: u32 = 17;
/// Switches a ring on or off.
pub(super) const SET_VRING_ENABLE: u32 = 18;
/// Asks for an announcement of the guest's address after a migration.
pub(super) const SEND_RARP: u32 = 19;
/// The MTU that the front end wants to use.
pub(super) const NET_SET_MTU: u32 = 20;
/// One memory region more.
pub(super) const ADD_MEM_REG: u32 = 37;
/// One memory region less.
pub(super) const REM_MEM_REG: u32 = 38;
/// Device status as the guest driver wrote it.
pub(super) const SET_STATUS: u32 = 39;
/// Device status as the back end knows it.
pub(super) const GET_STATUS: u32 = 40;

/// Requests that have an answer of their own, acknowledgement or not: GET_FEATURES, GET_VRING_BASE,
/// GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_CONFIG, GET_INFLIGHT_FD, GET_MAX_MEM_SLOTS, GET_STATUS,
/// GET_SHARED_OBJECT, SET_DEVICE_STATE_FD, CHECK_DEVICE_STATE, GET_SHMEM_CONFIG.
pub(super) const ALWAYS_ANSWERED: [u32; 12] = [1, 11, 15, 17, 24, 31, 36, 40, 41, 42, 43, 44];
