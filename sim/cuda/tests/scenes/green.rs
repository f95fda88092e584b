//! Scenes about green contexts.

use super::*;

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

fn zeroed() -> CUdevResource {
    // SAFETY: plain data, which calls fill.
    unsafe { std::mem::zeroed() }
}

fn count(resource: &CUdevResource) -> u32 {
    assert_eq!(resource.type_, SM);
    // SAFETY: its type says that it is this one.
    unsafe { resource.__bindgen_anon_1.sm.smCount }
}

fn whole() -> CUdevResource {
    let mut all = zeroed();
    ok!(cuDeviceGetDevResource(0, &mut all, SM));
    all
}

fn described(mut resources: Vec<CUdevResource>) -> CUdevResourceDesc {
    let mut description = null_mut();
    let count = resources.len() as u32;
    ok!(cuDevResourceGenerateDesc(
        &mut description,
        resources.as_mut_ptr(),
        count
    ));
    description
}

#[test]
#[ignore = "a scene that another test plays"]
fn multiprocessors_are_divided_in_the_steps_of_the_device() {
    context();
    let all = whole();
    let mut attribute = 0;
    ok!(cuDeviceGetAttribute(
        &mut attribute,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        0
    ));
    assert_eq!(count(&all), attribute as u32);
    let mut wrong = zeroed();
    fails!(
        cuDeviceGetDevResource(
            0,
            &mut wrong,
            CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID
        ),
        CUDA_ERROR_INVALID_RESOURCE_TYPE
    );
    // SAFETY: its type says that it is this one.
    let sm = unsafe { all.__bindgen_anon_1.sm };
    let step = sm.smCoscheduledAlignment;
    let mut groups = 0;
    ok!(cuDevSmResourceSplitByCount(
        null_mut(),
        &mut groups,
        &all,
        null_mut(),
        0,
        1
    ));
    assert_eq!(groups, sm.smCount / sm.minSmPartitionSize);
    let (mut parts, mut rest) = ([zeroed(), zeroed()], zeroed());
    let asked = sm.minSmPartitionSize + 1;
    let each = asked.next_multiple_of(step);
    groups = 1;
    ok!(cuDevSmResourceSplitByCount(
        parts.as_mut_ptr(),
        &mut groups,
        &all,
        &mut rest,
        0,
        asked
    ));
    assert_eq!((groups, count(&parts[0])), (1, each));
    if each < sm.smCount {
        assert_eq!(count(&rest), sm.smCount - each);
    } else {
        assert_eq!(rest.type_, CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID);
    }
    fails!(
        cuDevSmResourceSplitByCount(
            parts.as_mut_ptr(),
            &mut groups,
            &all,
            null_mut(),
            0,
            sm.smCount + 1
        ),
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
    );
    fails!(
        cuDevSmResourceSplitByCount(parts.as_mut_ptr(), &mut groups, &all, null_mut(), 8, asked),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_green_context_has_its_part_and_streams_of_its_own() {
    context();
    let function = function(c"spin_ns");
    let (mut groups, mut part, mut rest) = (1, zeroed(), zeroed());
    ok!(cuDevSmResourceSplitByCount(
        &mut part,
        &mut groups,
        &whole(),
        &mut rest,
        0,
        1
    ));
    let mut green = null_mut();
    fails!(
        cuGreenCtxCreate(&mut green, null_mut(), 0, 1),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGreenCtxCreate(&mut green, described(vec![part]), 0, 1));
    let mut held = zeroed();
    ok!(cuGreenCtxGetDevResource(green, &mut held, SM));
    assert_eq!(count(&held), count(&part));
    let (mut given, mut primary) = (null_mut(), null_mut());
    ok!(cuCtxFromGreenCtx(&mut given, green));
    ok!(cuDevicePrimaryCtxRetain(&mut primary, 0));
    assert_eq!(given, primary);
    let (mut one, mut two) = (null_mut(), null_mut());
    fails!(
        cuGreenCtxStreamCreate(&mut one, green, 0, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGreenCtxStreamCreate(&mut one, green, 1, 0));
    ok!(cuGreenCtxStreamCreate(&mut two, green, 1, 0));
    let mut found = null_mut();
    ok!(cuStreamGetGreenCtx(one, &mut found));
    assert_eq!(found, green);
    ok!(cuStreamGetGreenCtx(stream(1), &mut found));
    assert!(found.is_null());
    // An event of the whole: reached when everything of all its streams is.
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 0));
    spin(function, 30_000_000, one);
    spin(function, 60_000_000, two);
    ok!(cuGreenCtxRecordEvent(green, event));
    ok!(cuEventSynchronize(event));
    ok!(cuStreamQuery(one));
    ok!(cuStreamQuery(two));
    // And one that all of them wait for.
    let other = stream(1);
    spin(function, 50_000_000, other);
    ok!(cuEventRecord(event, other));
    ok!(cuGreenCtxWaitEvent(green, event));
    spin(function, 1_000, one);
    ok!(cuStreamSynchronize(one));
    ok!(cuStreamQuery(other));
    ok!(cuGreenCtxDestroy(green));
    fails!(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
}
