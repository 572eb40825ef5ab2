! The C functions of a client: tensors, datasets, keys, prefixes, lists.
module smartredis_c_client
use iso_c_binding, only : c_ptr, c_char, c_bool, c_int, c_size_t
use fortran_c_interop, only : enum_kind
use smartredis_c_signatures
implicit none
public

procedure(signature_new), bind(c, name="SimpleCreateClient") :: c_SimpleCreateClient
procedure(signature_object), bind(c, name="CreateClient") :: c_CreateClient
procedure(signature_free), bind(c, name="DeleteCClient") :: c_DeleteCClient
procedure(signature_object), bind(c, name="get_dataset") :: c_get_dataset
procedure(signature_two_texts), bind(c, name="rename_dataset") :: c_rename_dataset
procedure(signature_two_texts), bind(c, name="copy_dataset") :: c_copy_dataset
procedure(signature_name), bind(c, name="delete_dataset") :: c_delete_dataset
procedure(signature_tensor), bind(c, name="put_tensor") :: c_put_tensor
procedure(signature_tensor), bind(c, name="unpack_tensor") :: c_unpack_tensor
procedure(signature_two_texts), bind(c, name="rename_tensor") :: c_rename_tensor
procedure(signature_name), bind(c, name="delete_tensor") :: c_delete_tensor
procedure(signature_two_texts), bind(c, name="copy_tensor") :: c_copy_tensor
procedure(signature_exists), bind(c, name="key_exists") :: c_key_exists
procedure(signature_exists), bind(c, name="tensor_exists") :: c_tensor_exists
procedure(signature_exists), bind(c, name="model_exists") :: c_model_exists
procedure(signature_exists), bind(c, name="dataset_exists") :: c_dataset_exists
procedure(signature_poll), bind(c, name="poll_key") :: c_poll_key
procedure(signature_poll), bind(c, name="poll_model") :: c_poll_model
procedure(signature_poll), bind(c, name="poll_tensor") :: c_poll_tensor
procedure(signature_poll), bind(c, name="poll_dataset") :: c_poll_dataset
procedure(signature_name), bind(c, name="set_data_source") :: c_set_data_source
procedure(signature_prefix), bind(c, name="use_tensor_ensemble_prefix") :: c_use_tensor_ensemble_prefix
procedure(signature_prefix), bind(c, name="use_dataset_ensemble_prefix") :: c_use_dataset_ensemble_prefix
procedure(signature_prefix), bind(c, name="use_model_ensemble_prefix") :: c_use_model_ensemble_prefix
procedure(signature_prefix), bind(c, name="use_list_ensemble_prefix") :: c_use_list_ensemble_prefix
procedure(signature_name), bind(c, name="delete_list") :: c_delete_list
procedure(signature_two_texts), bind(c, name="copy_list") :: c_copy_list
procedure(signature_two_texts), bind(c, name="rename_list") :: c_rename_list
procedure(signature_poll_length), bind(c, name="poll_list_length") :: c_poll_list_length
procedure(signature_poll_length), bind(c, name="poll_list_length_gte") :: c_poll_list_length_gte
procedure(signature_poll_length), bind(c, name="poll_list_length_lte") :: c_poll_list_length_lte
procedure(signature_object), bind(c, name="put_draft") :: c_put_draft
procedure(signature_free), bind(c, name="DeallocateDraft") :: c_DeallocateDraft
procedure(signature_free), bind(c, name="DeallocateLease") :: c_DeallocateLease
procedure(signature_string), bind(c, name="client_to_string") :: c_client_to_string

interface
  function c_SmartRedisCClient(cluster, logger_name, logger_name_length, new_client) bind(c, &
      name="SmartRedisCClient") result(code)
    import
    logical(c_bool), value :: cluster
    character(kind=c_char), dimension(*) :: logger_name
    integer(c_size_t), value :: logger_name_length
    type(c_ptr) :: new_client
    integer(enum_kind) :: code
  end function c_SmartRedisCClient

  function c_put_dataset(c_client, dataset) bind(c, name="put_dataset") result(code)
    import
    type(c_ptr), value :: c_client, dataset
    integer(enum_kind) :: code
  end function c_put_dataset

  function c_append_to_list(c_client, list_name, list_name_length, dataset) bind(c, name="append_to_list") &
      result(code)
    import
    type(c_ptr), value :: c_client, dataset
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
    integer(enum_kind) :: code
  end function c_append_to_list

  function c_get_list_length(c_client, list_name, list_name_length, result_length) bind(c, &
      name="get_list_length") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
    integer(c_int) :: result_length
    integer(enum_kind) :: code
  end function c_get_list_length

  function c_get_dataset_list_range_allocated(c_client, list_name, list_name_length, start_index, end_index, &
      datasets) bind(c, name="_get_dataset_list_range_allocated") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: list_name
    integer(c_size_t), value :: list_name_length
    integer(c_int), value :: start_index, end_index
    type(c_ptr), dimension(*) :: datasets
    integer(enum_kind) :: code
  end function c_get_dataset_list_range_allocated

  function c_draft_tensor(c_client, dims, n_dims, type, mem_layout, draft, data) bind(c, name="draft_tensor") &
      result(code)
    import
    type(c_ptr), value :: c_client
    integer(c_size_t), dimension(*) :: dims
    integer(c_size_t), value :: n_dims
    integer(enum_kind), value :: type, mem_layout
    type(c_ptr) :: draft, data
    integer(enum_kind) :: code
  end function c_draft_tensor

  function c_lease_tensor(c_client, name, name_length, lease, data, dims, n_dims, type, mem_layout) bind(c, &
      name="lease_tensor") result(code)
    import
    type(c_ptr), value :: c_client
    character(kind=c_char), dimension(*) :: name
    integer(c_size_t), value :: name_length
    type(c_ptr) :: lease, data, dims
    integer(c_size_t) :: n_dims
    integer(enum_kind) :: type, mem_layout, code
  end function c_lease_tensor
end interface

end module smartredis_c_client
