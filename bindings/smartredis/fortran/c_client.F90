! The C functions of a client: tensors, datasets, keys, prefixes, lists.
module smartredis_c_client
use iso_c_binding, only : c_ptr, c_char, c_bool, c_int, c_int64_t, c_size_t
use fortran_c_interop, only : enum_kind
implicit none
public

interface
  integer(enum_kind) function c_SimpleCreateClient(logger_name, logger_name_length, new_client) &
      bind(c, name="SimpleCreateClient")
    import
    character(kind=c_char), dimension(*) :: logger_name
    integer(c_size_t), value :: logger_name_length
    type(c_ptr) :: new_client
  end function c_SimpleCreateClient

  integer(enum_kind) function c_CreateClient(config_options, logger_name, logger_name_length, new_client) &
      bind(c, name="CreateClient")
    import
    type(c_ptr), value :: config_options
    character(kind=c_char), dimension(*) :: logger_name
    integer(c_size_t), value :: logger_name_length
    type(c_ptr) :: new_client
  end function c_CreateClient

  integer(enum_kind) function c_SmartRedisCClient(cluster, logger_name, logger_name_length, new_client) &
      bind(c, name="SmartRedisCClient")
    import
    logical(c_bool), value :: cluster
    character(kind=c_char), dimension(*) :: logger_name
    integer(c_size_t), value :: logger_name_length
    type(c_ptr) :: new_client
  end function c_SmartRedisCClient

  integer(enum_kind) function c_DeleteCClient(c_client) bind(c, name="DeleteCClient")
    import
    type(c_ptr) :: c_client
  end function c_DeleteCClient

  integer(enum_kind) function c_put_dataset(c_client, dataset) bind(c, name="put_dataset")
    import
    type(c_ptr), value :: c_client, dataset
  end function c_put_dataset

  integer(enum_kind) function c_get_dataset(c_client, name, name_length, dataset) bind(c, name="get_dataset")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: dataset
  end function c_get_dataset

  integer(enum_kind) function c_rename_dataset(c_client, old_name, old_name_length, new_name, new_name_length) &
      bind(c, name="rename_dataset")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: old_name, new_name
    integer(c_size_t), value :: old_name_length, new_name_length
  end function c_rename_dataset

  integer(enum_kind) function c_copy_dataset(c_client, src_name, src_name_length, dest_name, dest_name_length) &
      bind(c, name="copy_dataset")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: src_name, dest_name
    integer(c_size_t), value :: src_name_length, dest_name_length
  end function c_copy_dataset

  integer(enum_kind) function c_delete_dataset(c_client, name, name_length) bind(c, name="delete_dataset")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
  end function c_delete_dataset

  integer(enum_kind) function c_put_tensor(c_client, name, name_length, data, dims, n_dims, type, mem_layout) &
      bind(c, name="put_tensor")
    import
    type(c_ptr), value :: c_client, data
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_dims
    integer(c_size_t), dimension(*) :: dims
    integer(enum_kind), value :: type, mem_layout
  end function c_put_tensor

  integer(enum_kind) function c_unpack_tensor(c_client, name, name_length, result, dims, n_dims, type, mem_layout) &
      bind(c, name="unpack_tensor")
    import
    type(c_ptr), value :: c_client, result
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length, n_dims
    integer(c_size_t), dimension(*) :: dims
    integer(enum_kind), value :: type, mem_layout
  end function c_unpack_tensor

  integer(enum_kind) function c_rename_tensor(c_client, old_name, old_name_length, new_name, new_name_length) &
      bind(c, name="rename_tensor")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: old_name, new_name
    integer(c_size_t), value :: old_name_length, new_name_length
  end function c_rename_tensor

  integer(enum_kind) function c_delete_tensor(c_client, name, name_length) bind(c, name="delete_tensor")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
  end function c_delete_tensor

  integer(enum_kind) function c_copy_tensor(c_client, src_name, src_name_length, dest_name, dest_name_length) &
      bind(c, name="copy_tensor")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: src_name, dest_name
    integer(c_size_t), value :: src_name_length, dest_name_length
  end function c_copy_tensor

  integer(enum_kind) function c_key_exists(c_client, key, key_length, exists) bind(c, name="key_exists")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: key
    integer(c_size_t), value :: key_length
    logical(c_bool) :: exists
  end function c_key_exists

  integer(enum_kind) function c_tensor_exists(c_client, name, name_length, exists) bind(c, name="tensor_exists")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    logical(c_bool) :: exists
  end function c_tensor_exists

  integer(enum_kind) function c_model_exists(c_client, name, name_length, exists) bind(c, name="model_exists")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    logical(c_bool) :: exists
  end function c_model_exists

  integer(enum_kind) function c_dataset_exists(c_client, name, name_length, exists) bind(c, name="dataset_exists")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    logical(c_bool) :: exists
  end function c_dataset_exists

  integer(enum_kind) function c_poll_key(c_client, key, key_length, poll_frequency_ms, num_tries, exists) &
      bind(c, name="poll_key")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: key
    integer(c_size_t), value :: key_length
    integer(c_int), value :: poll_frequency_ms, num_tries
    logical(c_bool) :: exists
  end function c_poll_key

  integer(enum_kind) function c_poll_model(c_client, name, name_length, poll_frequency_ms, num_tries, exists) &
      bind(c, name="poll_model")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: poll_frequency_ms, num_tries
    logical(c_bool) :: exists
  end function c_poll_model

  integer(enum_kind) function c_poll_tensor(c_client, name, name_length, poll_frequency_ms, num_tries, exists) &
      bind(c, name="poll_tensor")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: poll_frequency_ms, num_tries
    logical(c_bool) :: exists
  end function c_poll_tensor

  integer(enum_kind) function c_poll_dataset(c_client, name, name_length, poll_frequency_ms, num_tries, exists) &
      bind(c, name="poll_dataset")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: poll_frequency_ms, num_tries
    logical(c_bool) :: exists
  end function c_poll_dataset

  integer(enum_kind) function c_set_data_source(c_client, source_id, source_id_length) bind(c, name="set_data_source")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: source_id
    integer(c_size_t), value :: source_id_length
  end function c_set_data_source

  integer(enum_kind) function c_use_tensor_ensemble_prefix(c_client, use_prefix) &
      bind(c, name="use_tensor_ensemble_prefix")
    import
    type(c_ptr), value :: c_client
    logical(c_bool), value :: use_prefix
  end function c_use_tensor_ensemble_prefix

  integer(enum_kind) function c_use_dataset_ensemble_prefix(c_client, use_prefix) &
      bind(c, name="use_dataset_ensemble_prefix")
    import
    type(c_ptr), value :: c_client
    logical(c_bool), value :: use_prefix
  end function c_use_dataset_ensemble_prefix

  integer(enum_kind) function c_use_model_ensemble_prefix(c_client, use_prefix) &
      bind(c, name="use_model_ensemble_prefix")
    import
    type(c_ptr), value :: c_client
    logical(c_bool), value :: use_prefix
  end function c_use_model_ensemble_prefix

  integer(enum_kind) function c_use_list_ensemble_prefix(c_client, use_prefix) &
      bind(c, name="use_list_ensemble_prefix")
    import
    type(c_ptr), value :: c_client
    logical(c_bool), value :: use_prefix
  end function c_use_list_ensemble_prefix

  integer(enum_kind) function c_append_to_list(c_client, list_name, list_name_length, dataset) &
      bind(c, name="append_to_list")
    import
    type(c_ptr), value :: c_client, dataset
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
  end function c_append_to_list

  integer(enum_kind) function c_delete_list(c_client, list_name, list_name_length) bind(c, name="delete_list")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
  end function c_delete_list

  integer(enum_kind) function c_copy_list(c_client, src_name, src_name_length, dest_name, dest_name_length) &
      bind(c, name="copy_list")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: src_name, dest_name
    integer(c_size_t), value :: src_name_length, dest_name_length
  end function c_copy_list

  integer(enum_kind) function c_rename_list(c_client, src_name, src_name_length, dest_name, dest_name_length) &
      bind(c, name="rename_list")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: src_name, dest_name
    integer(c_size_t), value :: src_name_length, dest_name_length
  end function c_rename_list

  integer(enum_kind) function c_get_list_length(c_client, list_name, list_name_length, result_length) &
      bind(c, name="get_list_length")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
    integer(c_int) :: result_length
  end function c_get_list_length

  integer(enum_kind) function c_poll_list_length(c_client, name, name_length, list_length, poll_frequency_ms, &
      num_tries, poll_result) bind(c, name="poll_list_length")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: list_length, poll_frequency_ms, num_tries
    logical(c_bool) :: poll_result
  end function c_poll_list_length

  integer(enum_kind) function c_poll_list_length_gte(c_client, name, name_length, list_length, poll_frequency_ms, &
      num_tries, poll_result) bind(c, name="poll_list_length_gte")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: list_length, poll_frequency_ms, num_tries
    logical(c_bool) :: poll_result
  end function c_poll_list_length_gte

  integer(enum_kind) function c_poll_list_length_lte(c_client, name, name_length, list_length, poll_frequency_ms, &
      num_tries, poll_result) bind(c, name="poll_list_length_lte")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    integer(c_int), value :: list_length, poll_frequency_ms, num_tries
    logical(c_bool) :: poll_result
  end function c_poll_list_length_lte

  integer(enum_kind) function c_get_dataset_list_range_allocated(c_client, list_name, list_name_length, start_index, &
      end_index, datasets) bind(c, name="_get_dataset_list_range_allocated")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
    integer(c_int), value :: start_index, end_index
    type(c_ptr), dimension(*) :: datasets
  end function c_get_dataset_list_range_allocated

  integer(enum_kind) function c_draft_tensor(c_client, dims, n_dims, type, mem_layout, draft, data) &
      bind(c, name="draft_tensor")
    import
    type(c_ptr), value :: c_client
    integer(c_size_t), dimension(*) :: dims
    integer(c_size_t), value :: n_dims
    integer(enum_kind), value :: type, mem_layout
    type(c_ptr) :: draft, data
  end function c_draft_tensor

  integer(enum_kind) function c_put_draft(c_client, name, name_length, draft) bind(c, name="put_draft")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: draft
  end function c_put_draft

  integer(enum_kind) function c_DeallocateDraft(draft) bind(c, name="DeallocateDraft")
    import
    type(c_ptr) :: draft
  end function c_DeallocateDraft

  integer(enum_kind) function c_lease_tensor(c_client, name, name_length, lease, data, dims, n_dims, type, mem_layout) &
      bind(c, name="lease_tensor")
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: lease, data, dims
    integer(c_size_t) :: n_dims
    integer(enum_kind) :: type, mem_layout
  end function c_lease_tensor

  integer(enum_kind) function c_DeallocateLease(lease) bind(c, name="DeallocateLease")
    import
    type(c_ptr) :: lease
  end function c_DeallocateLease

  function c_client_to_string(c_client) bind(c, name="client_to_string") result(text)
    import
    type(c_ptr), value :: c_client
    type(c_ptr) :: text
  end function c_client_to_string
end interface

end module smartredis_c_client
